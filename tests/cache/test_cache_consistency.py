"""After a change has returned, nobody gets what was true before it."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager

import pytest

from agentic_retriever.cache import SingleFlightCache, cache_key
from agentic_retriever.redis import RedisStore


class Json:
    def encode(self, value):
        return b"%d" % value

    def decode(self, data):
        return int(data)


class World:
    """Documents with a version that grows with every change, and answers made from them."""

    def __init__(self):
        self.version = 0
        self.documents = {}

    def change(self, random_):
        document = random_.randrange(5)
        if random_.random() < 0.3:
            self.documents.pop(document, None)
        else:
            self.documents[document] = random_.randrange(1_000)
        self.version += 1

    def answer(self, question):
        return self.documents.get(question, -1)


def ask(cache, world, question):
    key = cache_key(question=question, version=world.version)
    return cache.get_or_compute(key, lambda: world.answer(question))[0]


@contextmanager
def readers(caches, world, seed):
    """Two threads for each cache that ask all the time."""
    done = threading.Event()

    def read(cache, random_):
        while not done.is_set():
            ask(cache, world, random_.randrange(5))

    threads = [
        threading.Thread(target=read, args=(cache, random.Random(seed + i))) for i, cache in enumerate(caches * 2)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def consistent(caches, *, operations, seed):
    random_, world = random.Random(seed), World()
    with readers(caches, world, seed):
        for number in range(operations):
            if random_.random() < 0.3:
                world.change(random_)
            if number % 100 == 99:
                random_.choice(caches).clear()
            question = random_.randrange(5)
            assert ask(random_.choice(caches), world, question) == world.answer(question), number


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_operations_in_memory(seed):
    consistent([SingleFlightCache(max_entries=20, ttl_s=60)], operations=1_000, seed=seed)


def test_several_processes_caches_over_one_redis(link, namespace):
    stores = [RedisStore(link, kind="answers", namespace=namespace) for _ in range(3)]
    caches = [SingleFlightCache(max_entries=5, ttl_s=60, store=store, codec=Json()) for store in stores]
    consistent(caches, operations=300, seed=1)
    caches[0].get_or_compute("last", lambda: 7)
    for cache in caches:
        cache.close()
    assert caches[1].get_or_compute("last", lambda: 8) == (7, True)
    assert caches[1].stats().store_hits > 0
