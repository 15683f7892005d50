"""What every forked program would load anew: what tells languages and counts tokens."""

from agentic_retriever.ingestion.chunking import count_tokens
from agentic_retriever.text import detect_language

LOADED = detect_language("Which of the languages is this in?"), count_tokens("word")
