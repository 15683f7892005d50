"""After a change of an index has returned, no later query gets an answer from before it."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager

import pytest
from llama_index.core.schema import Document

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.testing import FakeEmbedding

HOURS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
QUESTION = "How many hours does the cat sleep?"


@pytest.fixture
def router(tmp_path):
    with AgenticRouter(RouterConfig(data_dir=tmp_path), embedding=FakeEmbedding(dimension=64)) as made:
        yield made


def cat(hours):
    return Document(text=f"The cat sleeps {hours} hours a day.", doc_id="cat")


def test_an_index_that_was_removed_and_made_again(router):
    for hours in HOURS[:3]:
        router.add_index("animals", [cat(hours)], description="Cats")
        assert f"{hours} hours" in router.query(QUESTION).text
        router.remove_index("animals")


@contextmanager
def readers(router):
    """Two threads that ask all the time; what they raise is raised in the end."""
    stop, errors = threading.Event(), []

    def read():
        try:
            while not stop.is_set():
                router.query(QUESTION, index="animals", strategy="vector")
        except Exception as err:  # noqa: BLE001 - raised by the assertion below
            errors.append(err)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []


def changed(router, random_, now):
    """Change the index or leave it; return how long the cat sleeps then, according to it."""
    kind = random_.choice(("update", "delete", "nothing"))
    if kind == "update":
        now = random_.choice(HOURS)
        router.add_index("animals", [cat(now)])
    elif kind == "delete" and now:
        router.remove_documents("animals", ["cat"])
        now = ""
    return now


@pytest.mark.parametrize("seed", range(2))
def test_random_changes_with_readers(router, seed):
    random_ = random.Random(seed)
    now = random_.choice(HOURS)
    router.add_index("animals", [cat(now), Document(text="The dog barks.", doc_id="dog")], description="Animals")
    with readers(router):
        for _ in range(25):
            now = changed(router, random_, now)
            answer = router.query(QUESTION, index="animals", strategy="vector")
            texts = " ".join(node.node.text for node in answer.nodes)
            assert [hours for hours in HOURS if f"{hours} hours" in texts] == [now] * bool(now)
    router.add_index("animals", [cat("two")])
    assert [router.query(QUESTION, index="animals", strategy="vector").cached for _ in range(2)] == [False, True]
