"""Values shared by several processes through a Redis server that may be slow, full, broken or gone.

:class:`RedisLink` makes calls within a time limit and behind a breaker, :class:`RedisStore` keeps values with a time to
live on it. Neither ever raises for what the server does: every failure is a miss, counted, and warned of once.
"""

from agentic_retriever.redis_link.breaker import Breaker, Verdict
from agentic_retriever.redis_link.envelope import Stored
from agentic_retriever.redis_link.link import LinkStats, RedisLink, open_link
from agentic_retriever.redis_link.store import NAMESPACE, RedisStore, StoreStats
from agentic_retriever.redis_link.writer import WriteBehind

__all__ = [
    "NAMESPACE",
    "Breaker",
    "LinkStats",
    "RedisLink",
    "RedisStore",
    "StoreStats",
    "Stored",
    "Verdict",
    "WriteBehind",
    "open_link",
]
