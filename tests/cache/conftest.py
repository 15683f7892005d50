import json
import uuid

import pytest
from redis_servers import REDIS
from waiting import Clock

from agentic_retriever.cache import SingleFlightCache
from agentic_retriever.redis import RedisLink, RedisStore
from agentic_retriever.threads import Breaker


@pytest.fixture
def links(closed_at_end):
    """Make links that are closed after the test."""
    pytest.importorskip("redis", reason="the extra 'redis' is not installed")
    return lambda url, **settings: closed_at_end(RedisLink(url, **settings))


@pytest.fixture
def link(links, redis_client):
    """A link to the server of this machine, with patience for a busy one."""
    return links(REDIS, timeout_s=5.0)


@pytest.fixture
def namespace(link):
    """A namespace of this test alone, whose keys are deleted when nobody writes any more."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    link.call(lambda client: [client.delete(key) for key in client.scan_iter(f"{name}*")], default=None)


@pytest.fixture
def clock():
    return Clock(1_000.0)


@pytest.fixture
def breaker(clock):
    return Breaker(failures=1, cooldown_s=1.0, max_cooldown_s=8.0, clock=clock)


@pytest.fixture
def on_redis(closed_at_end):
    """Makes caches with a second level on Redis, which are closed after the test."""

    def make(link, *, max_entries=1_000, **namespace):
        second = RedisStore(link, kind="answers", **namespace), lambda value: json.dumps(value).encode(), json.loads
        return closed_at_end(SingleFlightCache(max_entries=max_entries, ttl_s=60, second=second))

    return make
