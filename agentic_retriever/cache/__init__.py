"""Computed values kept for a while: in memory, and on Redis for several processes; one computation for many callers."""

from agentic_retriever.cache.build import answer_cache
from agentic_retriever.cache.keys import cache_key
from agentic_retriever.cache.levels import CacheStore, Codec
from agentic_retriever.cache.memory import ExpiringLRU
from agentic_retriever.cache.single_flight import SingleFlightCache
from agentic_retriever.cache.stats import CacheStats
from agentic_retriever.cache.warming import WarmFailure, WarmOutcome, WarmReport, read_questions, warm

__all__ = [
    "CacheStats",
    "CacheStore",
    "Codec",
    "ExpiringLRU",
    "SingleFlightCache",
    "WarmFailure",
    "WarmOutcome",
    "WarmReport",
    "answer_cache",
    "cache_key",
    "read_questions",
    "warm",
]
