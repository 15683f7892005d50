"""The packaged model: what its batches promise, with a stand-in for the engine and with the engine itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.embeddings import LocalE5Embedding
from agentic_retriever.embeddings import resolve as local


class Engine:
    """Gives each text a vector that only it has, and knows who called."""

    def __init__(self, refused=None):
        self.refused = refused
        self.threads = set()
        self.calls = []

    def encode(self, texts, is_query=False):
        self.threads.add(threading.current_thread())
        self.calls.append((list(texts), is_query))
        if self.refused in texts:
            raise RuntimeError(f"cannot encode {self.refused}")
        return np.array([[float(len(text)), float(sum(map(ord, text))), 1.0] for text in texts], dtype=np.float32)


class Limits:
    def limit(self, *, limits):
        assert limits == 1
        return threading.Lock()


def stand_in(monkeypatch, engine, cores=3):
    monkeypatch.setattr(local, "_load", lambda: (engine, Limits()))
    monkeypatch.setattr(local, "usable_cores", lambda: cores)
    return LocalE5Embedding(embed_batch_size=64)


@pytest.mark.parametrize("cores", [1, 2, 5])
@given(texts=st.lists(st.text(max_size=6), min_size=1, max_size=30))
def test_a_batch_is_what_its_texts_are_alone(texts, cores):
    with pytest.MonkeyPatch.context() as patch:
        model = stand_in(patch, Engine(), cores)
        together = model.get_text_embedding_batch(texts)
        assert together == [model.get_text_embedding(text) for text in texts]


def test_a_batch_is_shared_out_and_a_single_text_is_not(monkeypatch):
    engine = Engine()
    model = stand_in(monkeypatch, engine)
    model.get_query_embedding("one question")
    model.get_text_embedding("one passage")
    assert engine.threads == {threading.current_thread()}
    assert [is_query for _, is_query in engine.calls] == [True, False]
    model.get_text_embedding_batch([f"passage {at}" for at in range(20)])
    assert sorted(len(texts) for texts, _ in engine.calls[2:]) == [2] * 10
    assert not any(is_query for _, is_query in engine.calls[2:])


def test_what_would_be_one_core_s_share_is_left_to_all_of_them(monkeypatch):
    engine = Engine()
    stand_in(monkeypatch, engine).get_text_embedding_batch(["one", "two"])
    assert engine.threads == {threading.current_thread()}
    assert [texts for texts, _ in engine.calls] == [["one", "two"]]


def test_what_the_engine_raises_arrives(monkeypatch):
    model = stand_in(monkeypatch, Engine(refused="bad"))
    with pytest.raises(RuntimeError, match="cannot encode bad"):
        model.get_text_embedding_batch([*"abcdefgh", "bad"])
    assert model.get_text_embedding_batch(["good", "fine"]) == [model.get_text_embedding(t) for t in ("good", "fine")]


def test_the_engine_gives_the_same_in_batches_and_from_many_threads(local_embedding):
    texts = ["ferry", "pan de centeno", "โฉนดที่ดิน", "a\0b", "", "the keel of a boat " * 30] * 2
    alone = [local_embedding.get_text_embedding(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(local_embedding.get_text_embedding_batch, [texts] * 4))
    for batch in batches:
        assert np.allclose(batch, alone, atol=1e-6)


def test_other_threads_keep_their_number_of_openmp_threads(local_embedding):
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def openmp():
        return [one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "openmp"]

    before = openmp()
    local_embedding.get_text_embedding_batch(["one", "two", "three"])
    assert openmp() == before
