"""From retrieved nodes to a cited answer: by a model, or by extraction when there is none."""

from agentic_retriever.synthesis.citations import PassageMatcher, Support, cite
from agentic_retriever.synthesis.confidence import confidence_score
from agentic_retriever.synthesis.context import ContextPassage, assemble
from agentic_retriever.synthesis.extractive import Extraction, ExtractiveSynthesizer
from agentic_retriever.synthesis.checking import CitedText, Unsupported, check_citations
from agentic_retriever.synthesis.llm_answer import LLMAnswer, LLMSynthesizer
from agentic_retriever.synthesis.synthesizer import Evidence, Limits, Synthesis, Synthesizer

__all__ = [
    "CitedText",
    "ContextPassage",
    "Evidence",
    "Extraction",
    "ExtractiveSynthesizer",
    "LLMAnswer",
    "LLMSynthesizer",
    "Limits",
    "PassageMatcher",
    "Support",
    "Synthesis",
    "Synthesizer",
    "Unsupported",
    "assemble",
    "check_citations",
    "cite",
    "confidence_score",
]
