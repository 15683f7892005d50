"""From retrieved nodes to a cited answer: by a model, or by extraction when there is none."""

from agentic_retriever.synthesis.checking import CitationChecker, CitedText, Unsupported
from agentic_retriever.synthesis.citations import PassageMatcher
from agentic_retriever.synthesis.context import ContextPassage, Evidence, Limits, StreamControl, Synthesis, assemble
from agentic_retriever.synthesis.evidence import ConfidenceModel, ConfidenceModels
from agentic_retriever.synthesis.extractive import Extraction, ExtractiveSynthesizer
from agentic_retriever.synthesis.synthesizer import ForeignSynthesizer, LLMSynthesizer, Synthesizer, Task

__all__ = [
    "CitationChecker", "CitedText", "ConfidenceModel", "ConfidenceModels", "ContextPassage", "Evidence", "Extraction",
    "ExtractiveSynthesizer", "ForeignSynthesizer", "LLMSynthesizer", "Limits", "PassageMatcher", "StreamControl",
    "Synthesis", "Synthesizer", "Task", "Unsupported", "assemble",
]  # fmt: skip
