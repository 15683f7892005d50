"""Scripts and languages, terms, sentences and clean forms of text: for every language, without a model or a network."""

from agentic_retriever.text.language_files import stopwords
from agentic_retriever.text.scripts import (
    UNDETERMINED,
    Script,
    TerminalPieces,
    detect_language,
    dominant_script,
    normalise_query,
    safe_terminal,
    script_of,
)
from agentic_retriever.text.sentences import Sentence, split_sentences
from agentic_retriever.text.tokens import TOKENIZER_VERSION, Tokenizer, count_overlap

__all__ = [
    "TOKENIZER_VERSION",
    "UNDETERMINED",
    "Script",
    "Sentence",
    "TerminalPieces",
    "Tokenizer",
    "count_overlap",
    "detect_language",
    "dominant_script",
    "normalise_query",
    "safe_terminal",
    "script_of",
    "split_sentences",
    "stopwords",
]
