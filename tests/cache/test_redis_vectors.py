from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis_servers import MISBEHAVIOURS, misbehaving

from agentic_retriever.embeddings import EmbeddingModel, RedisVectorCache, text_hash
from agentic_retriever.embeddings.redis_cache import decoded, encoded
from agentic_retriever.redis_link import RedisStore
from agentic_retriever.testing import FakeEmbedding


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_vectors_come_back_to_the_bit_and_are_json(numbers):
    vector = np.array(numbers, dtype=np.float32)
    data = encoded(vector)
    assert json.loads(data)["n"] == len(numbers)
    assert decoded(data).tobytes() == vector.tobytes()


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"n":1}', b'{"n":1,"f32":3}', b'{"n":2,"f32":"AACAPw=="}', b'{"n":1,"f32":"AACAP"}',
     b'{"n":1,"f32":"AA\xc3\xa4CAPw=="}', b'{"n":0,"f32":""}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_vector_is_none(data):
    assert decoded(data) is None


class TestOnTheServer:
    @pytest.fixture
    def make(self, link, namespace, monkeypatch):
        monkeypatch.setattr(
            "agentic_retriever.embeddings.redis_cache.RedisStore",
            lambda link, kind: RedisStore(link, kind=kind, namespace=namespace),
        )
        return lambda **settings: RedisVectorCache(link, **settings)

    def test_two_processes_embed_a_text_once(self, make):
        texts = [f"the cat number {i}" for i in range(150)]
        first, shared = FakeEmbedding(), make()
        matrix, computed = EmbeddingModel(first, name="fake", shared=shared).embed_passages(texts)
        assert computed == 150
        assert shared.flush(5)
        second = FakeEmbedding()
        again, computed = EmbeddingModel(second, name="fake", shared=make()).embed_passages(texts)
        assert computed == len(second.calls) == 0
        assert (again == matrix).all()

    def test_questions_too_and_apart_from_passages(self, make):
        shared = make()
        model = EmbeddingModel(FakeEmbedding(), name="fake", shared=shared)
        vector = model.embed_query("the cat")
        assert shared.flush(5)
        second = FakeEmbedding()
        other = EmbeddingModel(second, name="fake", shared=make())
        assert (other.embed_query("the cat") == vector).all()
        assert second.calls == []
        assert other.embed_passages(["the cat"])[1] == 1
        assert EmbeddingModel(FakeEmbedding(), name="another", shared=make()).embed_query("the cat") is not vector
        with pytest.raises(ValueError, match="read-only"):
            other.embed_query("the cat")[0] = 7

    def test_other_models_have_other_vectors(self, make):
        shared = make()
        key = text_hash("x")
        shared.put_many("a", {key: np.array([1, 0], dtype=np.float32)})
        assert shared.flush(5)
        assert shared.get_many("b", [key]) == {}
        assert shared.get_many("a", [key])[key].tolist() == [1, 0]

    def test_a_day_by_default(self, make, link, namespace):
        shared = make()
        shared.put_many("a", {text_hash("x"): np.array([1, 0], dtype=np.float32)})
        assert shared.flush(5)
        [left] = link.call(lambda c: [c.ttl(key) for key in c.scan_iter(f"{namespace}*")], default=[])
        assert 86_000 < left <= 86_400

    @pytest.mark.parametrize("vector", [[0, 0], [np.nan, 1], [3, 4]])
    def test_unusable_vectors_are_computed_again(self, make, vector):
        shared = make()
        key = text_hash("\0query the cat")
        shared.put_many("fake", {key: np.array(vector, dtype=np.float32), text_hash("the cat"): np.ones(2, np.float32)})
        assert shared.flush(5)
        model = EmbeddingModel(FakeEmbedding(), name="fake", shared=shared)
        assert model.embed_query("the cat").shape == (32,)
        assert model.embed_passages(["the cat"])[1] == 1

    def test_damaged_vectors_are_dropped(self, make, link, namespace):
        shared = make()
        key = text_hash("x")
        RedisStore(link, kind="vectors", namespace=namespace).set(f"a\0{key.hex()}", b'{"n":7,"f32":""}', 60)
        for _ in range(500):
            if link.call(lambda c: list(c.scan_iter(f"{namespace}*")), default=None):
                break
        assert shared.get_many("a", [key]) == {}
        assert shared.flush(5)
        assert link.call(lambda c: list(c.scan_iter(f"{namespace}*")), default=None) == []

    def test_clear(self, make):
        shared = make()
        shared.put_many("a", {text_hash(str(i)): np.array([1, 0], dtype=np.float32) for i in range(100)})
        assert shared.flush(5)
        assert shared.stats().written == 100
        assert shared.clear() == 100


@pytest.mark.parametrize("how", MISBEHAVIOURS)
def test_embedding_goes_on_without_the_server(links, breaker, how):
    with misbehaving(MISBEHAVIOURS[how]) as url:
        model = EmbeddingModel(FakeEmbedding(), name="fake", shared=RedisVectorCache(links(url, breaker=breaker)))
        assert model.embed_query("the cat").shape == (32,)
        assert model.embed_passages([str(i) for i in range(200)])[1] == 200
        model.close()
