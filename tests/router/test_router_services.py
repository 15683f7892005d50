"""The router with real servers beside it, and with one that is stopped under way."""

from __future__ import annotations

import time
import uuid

import pytest
from model_servers import chat
from redis_servers import OwnServer, free_port, garbage, misbehaving
from small_indexes import GOOD, QUESTION
from waiting import within

from agentic_retriever.errors import AgenticRetrieverError

REDIS = "redis://127.0.0.1:6379/13"


@pytest.fixture
def redis_client():
    """A client of the Redis server of this machine."""
    redis = pytest.importorskip("redis", reason="the extra 'redis' is not installed")
    client = redis.Redis.from_url(REDIS, socket_connect_timeout=1, socket_timeout=2)
    try:
        client.ping()
    except redis.RedisError as err:
        pytest.skip(f"no Redis at {REDIS}: {type(err).__name__}")
    yield client
    client.close()


@pytest.fixture
def own_redis(tmp_path):
    """A Redis server of this test alone."""
    pytest.importorskip("redis", reason="the extra 'redis' is not installed")
    server = OwnServer(tmp_path)
    yield server
    server.kill()


def plain(answer):
    """What two callers of one question have in common."""
    told = answer.to_dict()
    return {name: value for name, value in told.items() if name not in {"query_id", "timings_ms", "cached"}}


def test_two_routers_share_answers_through_redis(make_tiers, ollama, redis_client):
    question = f"{QUESTION} {uuid.uuid4().hex}"
    ollama.reply(chat("ollama", GOOD))
    patient = {"redis_url": REDIS, "redis_timeout_ms": 2_000.0}
    first, second = make_tiers(**patient), make_tiers(**patient)
    before = set(redis_client.scan_iter("*"))
    try:
        made = first.query(question)
        first.cache.close()
        asked = len(ollama.requests)
        shared = second.query(question)
        assert (made.cached, shared.cached) == (False, True)
        assert plain(shared) == plain(made)
        assert shared.nodes[0].node.text == made.nodes[0].node.text
        assert len(ollama.requests) == asked
        assert second.cache.stats().store_hits == 1
        stream = make_tiers(**patient).stream(question)
        assert (list(stream), stream.answer.cached) == ([GOOD], True)
    finally:
        first.close()
        second.close()
        for key in set(redis_client.scan_iter("*")) - before:
            redis_client.delete(key)


def test_redis_that_is_killed_and_comes_back(make_tiers, ollama, own_redis):
    ollama.reply(chat("ollama", GOOD))
    router = make_tiers(redis_url=own_redis.url, redis_timeout_ms=1_000.0)
    assert router.query(QUESTION).text == GOOD
    assert router.cache.stats().to_dict()["store"]["up"]
    own_redis.kill()
    for number in range(10):
        answer = router.query(f"{QUESTION} {number}")
        assert (answer.text, answer.degraded) == (GOOD, ())
        assert answer.timings_ms["total"] < 2_500
    assert router.query(QUESTION).cached
    assert not router.cache.stats().to_dict()["store"]["up"]
    own_redis.start()
    ends = time.monotonic() + 10
    while not router.cache.stats().to_dict()["store"]["up"]:  # a query looks whether it answers again
        assert time.monotonic() < ends
        router.query(f"{QUESTION} {time.monotonic()}")
        time.sleep(0.05)


def test_redis_that_talks_nonsense(make_tiers, ollama):
    pytest.importorskip("redis", reason="the extra 'redis' is not installed")
    ollama.reply(chat("ollama", GOOD))
    with misbehaving(garbage) as url:
        router = make_tiers(redis_url=url)
        assert [router.query(f"{QUESTION} {n}").text for n in range(5)] == [GOOD] * 5


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_history_of_a_router(make_tiers, ollama, tmp_path, kind, request):
    ollama.reply(chat("ollama", GOOD))
    place = f"sqlite:///{tmp_path / 'log.sqlite'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    router = make_tiers(query_log=place)
    router.query(QUESTION)
    assert router.query(QUESTION).cached
    ollama.reply({"error": "x"}, 404)
    router.query(QUESTION + " Really?")
    assert list(router.stream(QUESTION + " Truly?"))
    with pytest.raises(AgenticRetrieverError):
        router.query("cat", index="nowhere")
    found = router.analytics()
    assert (found.queries, dict(found.errors)) == (5, {"UnknownIndexError": 1})
    assert found.to_dict()["queries"] == 5
    router.close()
    router.close()


def test_history_that_is_gone_disturbs_no_query(make_tiers, ollama):
    ollama.reply(chat("ollama", GOOD))
    pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
    router = make_tiers(query_log=f"postgresql://127.0.0.1:{free_port()}/none")
    with within(10):
        assert [router.query(f"{QUESTION} {n}").degraded for n in range(20)] == [()] * 20
    with pytest.raises(AgenticRetrieverError, match="query history"):
        router.analytics()
