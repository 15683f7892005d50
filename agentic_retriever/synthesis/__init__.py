"""From retrieved nodes to a cited answer: by a model, or by extraction when there is none."""

from agentic_retriever.synthesis.checking import CitationChecker, CitedText, Unsupported
from agentic_retriever.synthesis.citations import PassageMatcher
from agentic_retriever.synthesis.confidence import AnswerFeatures, ConfidenceModel, confidence_score
from agentic_retriever.synthesis.context import ContextPassage, Evidence, Limits, StreamControl, Synthesis, assemble
from agentic_retriever.synthesis.extractive import Extraction, ExtractiveSynthesizer, unknown_share
from agentic_retriever.synthesis.synthesizer import ForeignSynthesizer, LLMSynthesizer, Synthesizer

__all__ = [
    "AnswerFeatures", "CitationChecker", "CitedText", "ConfidenceModel", "ContextPassage", "Evidence", "Extraction",
    "ExtractiveSynthesizer", "ForeignSynthesizer", "LLMSynthesizer", "Limits", "PassageMatcher", "StreamControl",
    "Synthesis", "Synthesizer", "Unsupported", "assemble", "confidence_score", "unknown_share",
]  # fmt: skip
