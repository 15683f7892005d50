"""Metadata filters from the words of a question, and what to give up when they leave nothing."""

from __future__ import annotations

from agentic_retriever.understanding.clauses import Clause, RelaxationLadder, Rung, Understood
from agentic_retriever.understanding.extraction import extract_with_llm
from agentic_retriever.understanding.fields import FieldDictionary, FieldInfo, FieldKind
from agentic_retriever.understanding.understanding import understand

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
