"""Metadata filters from the words of a question, and what to give up when they leave nothing."""

from agentic_retriever.retrievers.question_filters.clauses import Clause, Understood
from agentic_retriever.retrievers.question_filters.extraction import extract_with_llm
from agentic_retriever.retrievers.question_filters.fields import FieldDictionary, FieldInfo, FieldKind
from agentic_retriever.retrievers.question_filters.ladder import RelaxationLadder, Rung
from agentic_retriever.retrievers.question_filters.understanding import understand

__all__ = [
    "Clause",
    "FieldDictionary",
    "FieldInfo",
    "FieldKind",
    "RelaxationLadder",
    "Rung",
    "Understood",
    "extract_with_llm",
    "understand",
]
