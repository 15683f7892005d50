"""Scripts and languages, terms, sentences and clean forms of text: for every language, without a model or a network."""

from agentic_retriever.text.language_files import stopwords
from agentic_retriever.text.scripts import UNDETERMINED, Script, detect_language, dominant_script, normalise_query
from agentic_retriever.text.sentences import Sentence, split_sentences
from agentic_retriever.text.tokens import Tokenizer, count_overlap

__all__ = [
    "UNDETERMINED", "Script", "Sentence", "Tokenizer", "count_overlap", "detect_language", "dominant_script",
    "normalise_query", "split_sentences", "stopwords",
]  # fmt: skip
