"""Query history and analytics.

:class:`LogEntry` is what is kept of one query, :func:`entry_of` makes it from an answer, :class:`QueryLog` writes it in
the background to SQLite or PostgreSQL and reads it back, :class:`Analytics` is what it shows over a period. SQLAlchemy
is loaded when the first entry is written or read.
"""

from agentic_retriever.querylog.log import FILE_NAME, TEXT_MODES, LogStats, QueryLog, open_query_log
from agentic_retriever.querylog.records import Analytics, Latency, LogEntry, RouteCount, entry_of

__all__ = [
    "FILE_NAME",
    "TEXT_MODES",
    "Analytics",
    "Latency",
    "LogEntry",
    "LogStats",
    "QueryLog",
    "RouteCount",
    "entry_of",
    "open_query_log",
]
