"""Scripts and languages, terms, sentences and clean forms of text: for every language, without a model or a network."""

from __future__ import annotations

from agentic_retriever.text.languages import UNDETERMINED, detect_language
from agentic_retriever.text.scripts import (
    Script,
    ScriptRun,
    TerminalPieces,
    dominant_script,
    normalise_query,
    safe_terminal,
    script_of,
    script_runs,
)
from agentic_retriever.text.sentences import Sentence, split_sentences
from agentic_retriever.text.tokens import TOKENIZER_VERSION, Tokenizer, count_overlap, stopwords

__all__ = [
    "TOKENIZER_VERSION",
    "UNDETERMINED",
    "Script",
    "ScriptRun",
    "Sentence",
    "TerminalPieces",
    "Tokenizer",
    "count_overlap",
    "detect_language",
    "dominant_script",
    "normalise_query",
    "safe_terminal",
    "script_of",
    "script_runs",
    "split_sentences",
    "stopwords",
]
