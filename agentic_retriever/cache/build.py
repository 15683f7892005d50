"""The answer cache that the settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agentic_retriever.cache.single_flight import SingleFlightCache
from agentic_retriever.redis_link import RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.cache.levels import Codec
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.redis_link import RedisLink

V = TypeVar("V")

ANSWERS = "answers"
"""The part of a Redis key that says what is kept."""


def answer_cache(
    config: RouterConfig,
    codec: Codec[V],
    *,
    link: RedisLink | None = None,
    copy: Callable[[V], V] = lambda value: value,
) -> SingleFlightCache[V]:
    """Make the answer cache.

    Args:
        config: ``cache_max_entries`` and ``cache_ttl_s``.
        codec: Brings answers to Redis and back.
        link: The server, from :func:`agentic_retriever.redis_link.open_link`; memory only without it.
        copy: Makes what is handed out from what is kept.
    """
    return SingleFlightCache(
        max_entries=config.cache_max_entries,
        ttl_s=config.cache_ttl_s,
        store=None if link is None else RedisStore(link, kind=ANSWERS),
        codec=None if link is None else codec,
        copy=copy,
    )
