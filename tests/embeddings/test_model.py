import threading
from unittest.mock import Mock

import numpy as np
import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from waiting import in_threads

from agentic_retriever.embeddings import (
    DiskVectorCache,
    EmbeddingModel,
    LocalEmbedding,
    PackedVectors,
    query_hash,
    text_hash,
)
from agentic_retriever.embeddings.model import embedding_time_s
from agentic_retriever.errors import DeadlineExceededError, EmbeddingError, OverloadedError
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.threads import Breaker, BreakerState


class Scripted(BaseEmbedding):
    """Returns what a test wants for each text."""

    model_name: str = "scripted"
    reply: object = None

    def _get_query_embedding(self, query):
        return self.reply(query)

    async def _aget_query_embedding(self, query):
        return self.reply(query)

    def _get_text_embedding(self, text):
        return self.reply(text)


def model(base, **settings):
    return EmbeddingModel(base, name="test:model", **settings)


def test_vectors_are_unit_float32_and_in_order():
    vectors, computed = model(FakeEmbedding()).embed_passages(["uno", "dos", "uno"])
    assert (vectors.shape, vectors.dtype) == ((3, 32), np.float32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.array_equal(vectors[0], vectors[2])
    assert computed == 2
    unasked = FakeEmbedding()
    vectors, computed = model(unasked).embed_passages([])
    assert (len(vectors), computed, unasked.calls) == (0, 0, [])


def test_query_and_passage_sides_are_kept_apart():
    class TwoSided(FakeEmbedding):
        def _get_query_embedding(self, query):
            return self._vector("query " + query)

    two = model(TwoSided())
    passages, _ = two.embed_passages(["x"])
    assert not np.allclose(two.embed_query("x"), passages[0])


def test_known_questions_are_not_computed(tmp_path):
    base, path = FakeEmbedding(dimension=4), tmp_path / "known.npz"
    embedding = model(base, packed=[PackedVectors(path)])
    PackedVectors.write(path, embedding.name, {query_hash("known"): np.array([1, 0, 0, 0], dtype=np.float32)})
    assert (embedding.embed_query("known").tolist(), base.calls) == ([1.0, 0.0, 0.0, 0.0], [])
    assert np.allclose(embedding.embed_query("other"), base.get_query_embedding("other"))
    # What is known of a question says nothing of a passage with the same text.
    assert np.allclose(embedding.embed_passages(["known"])[0], [base.get_text_embedding("known")])


def test_texts_go_out_in_batches_and_progress_adds_up():
    sizes, seen = [], []

    class Counting(FakeEmbedding):
        def _get_text_embeddings(self, texts):
            sizes.append(len(texts))
            return super()._get_text_embeddings(texts)

    model(Counting(embed_batch_size=100), batch_size=4).embed_passages(
        [str(i) for i in range(10)], on_progress=seen.append
    )
    assert (sizes, sum(seen)) == ([4, 4, 2], 10)


@pytest.mark.parametrize(("memory_size", "calls"), [(2048, [1, 1, 2]), (0, [1, 2, 3])])
def test_memory_saves_calls_until_its_time_is_up_and_can_be_off(memory_size, calls):
    now, base = [0.0], FakeEmbedding()
    embedding = model(base, memory_size=memory_size, memory_ttl_s=10, timer=lambda: now[0])
    seen = []
    for now[0] in (0.0, 9.0, 11.0):
        vector = embedding.embed_query("q")
        seen.append(len(base.calls))
    assert seen == calls
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 9


@pytest.mark.parametrize(
    ("vectors", "message"),
    [([[float("nan"), 1.0]], "zero, NaN or infinite"), ([[float("inf"), 1.0]], "zero, NaN or infinite"),
     ([[0.0, 0.0]], "zero, NaN or infinite"), ([[]], "shape"), ([[1.0], [1.0, 1.0]], "different lengths"),
     ([[1.0] * 4, [1.0] * 4, None], "returned 2 vectors for 3 texts")],
)  # fmt: skip
def test_unusable_vectors_are_refused(vectors, message):
    class Bad(FakeEmbedding):
        def _get_query_embedding(self, query):
            return vectors[0]

        def _get_text_embeddings(self, texts):
            return [vector for vector in vectors if vector is not None]

    with pytest.raises(EmbeddingError, match=message):
        model(Bad()).embed_passages([str(i) for i in range(len(vectors))])
    if len(vectors) == 1:
        with pytest.raises(EmbeddingError, match=message):
            model(Bad()).embed_query("q")


def test_a_change_of_dimension_is_refused_with_both_numbers():
    embedding = model(Scripted(reply=lambda text: [1.0] * len(text)))
    embedding.embed_query("four")
    with pytest.raises(EmbeddingError, match="returned 5 dimensions, 4 before"):
        embedding.embed_query("fives")


def test_failure_of_the_model_is_typed_and_keeps_its_cause_but_not_its_text_and_a_hanging_one_is_given_up(gate):
    with pytest.raises(EmbeddingError) as caught:
        model(Scripted(reply=Mock(side_effect=ConnectionError("key sk-canary-77 refused")))).embed_query("q")
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert "canary" not in str(caught.value)
    embedding = model(Scripted(reply=lambda _text: gate.wait() and [1.0, 0.0]), timeout_s=0.05)
    with pytest.raises(DeadlineExceededError, match="test:model"):
        embedding.embed_query("q")


def test_a_model_in_this_process_is_only_slow(gate):
    """It has its share of the question's time, is never left alone, and nobody is told to look whether it is up."""

    class Slow(LocalEmbedding):
        def _encode(self, texts, *, is_query):
            gate.wait(9)
            raise RuntimeError

    embedding = EmbeddingModel(Slow(), name="local:slow")
    assert embedding_time_s(120.0, embedding) > embedding_time_s(120.0)
    for _ in range(5):
        with pytest.raises(DeadlineExceededError, match="slow here; allow more time") as caught:
            embedding.embed_query("q", timeout_s=0.3)
        assert "is up" not in str(caught.value)
    gate.set()
    with pytest.raises(EmbeddingError, match="RuntimeError; run again"):
        embedding.embed_query("q")


def test_after_three_failures_no_question_waits_until_a_probe_succeeds_while_passages_go_on():
    release, now, sent = threading.Event(), [0.0], []
    base = Scripted(reply=lambda text: sent.append(text) or (release.wait(9), [1.0, 0.0])[1])
    embedding = model(base, breaker=Breaker(clock=lambda: now[0]))
    for timeout_s in (0.01, 0.1, 0.1):  # the first is too short to say anything about the model
        with pytest.raises(DeadlineExceededError):
            embedding.embed_query("q", timeout_s=timeout_s)
    with pytest.raises(DeadlineExceededError):
        embedding.embed_sentences(["s"], timeout_s=0.1)
    for ask in (embedding.embed_query, lambda text, **limit: embedding.embed_sentences([text], **limit)):
        with pytest.raises(EmbeddingError, match=r"3 times in a row.*tried again in 30 s"):
            ask("q", timeout_s=9.0)
    assert len(sent) == 4
    release.set()
    assert embedding.embed_query("whoever sets no limit waits on purpose").shape == (2,)
    now[0] = 30.0
    assert embedding.embed_query("q", timeout_s=9.0).shape == (2,)
    assert embedding.breaker.state is BreakerState.CLOSED


def test_places_that_hung_calls_keep_fail_a_probe_and_of_a_long_question_both_ends_are_embedded():
    release, now, sent = threading.Event(), [0.0], []
    base = Scripted(reply=lambda text: sent.append(text) or (release.wait(9), [1.0, 0.0])[1])
    embedding = model(base, breaker=Breaker(failures=8, clock=lambda: now[0]))
    for _ in range(8):
        with pytest.raises(DeadlineExceededError):
            embedding.embed_query("q", timeout_s=0.1)
    now[0] = 30.0
    with pytest.raises(OverloadedError):
        embedding.embed_query("q", timeout_s=0.1)
    assert embedding.breaker.state is BreakerState.OPEN
    release.set()
    embedding.embed_query("begins " + "x" * 19_000 + " ends")
    assert (len(sent[-1]), sent[-1][:6], sent[-1][-4:]) == (2_001, "begins", "ends")


def test_disk_cache_makes_the_second_run_free(tmp_path):
    base = FakeEmbedding()
    first = model(base, disk=DiskVectorCache(tmp_path / "v.sqlite"))
    vectors, computed = first.embed_passages(["a", "b"])
    first.close()
    again, recomputed = model(base, disk=DiskVectorCache(tmp_path / "v.sqlite")).embed_passages(["b", "a"])
    assert (computed, recomputed) == (2, 0)
    assert np.array_equal(vectors[::-1], again)


def test_batches_done_before_a_failure_stay_cached(tmp_path):
    calls = []

    def dies_at_third(text):
        calls.append(text)
        if len(calls) == 3:
            raise ConnectionError
        return [1.0, 0.0]

    embedding = model(Scripted(reply=dies_at_third), batch_size=1, disk=DiskVectorCache(tmp_path / "v.sqlite"))
    with pytest.raises(EmbeddingError):
        embedding.embed_passages(["a", "b", "c"])
    _, computed = embedding.embed_passages(["a", "b", "c"])
    assert computed == 1


def test_disk_cache_keeps_models_apart_and_a_damaged_entry_counts_as_absent(tmp_path, closed_at_end):
    disk, key = DiskVectorCache(tmp_path / "v.sqlite"), text_hash("a")
    disk.put_many("one", {key: np.array([1, 0], dtype=np.float32)})
    assert (disk.get_many("two", [key]), disk.get_many("one", [key])[key].tolist()) == ({}, [1, 0])
    disk.put_many("test:model", {key: np.full(32, np.nan, dtype=np.float32)})
    vectors, computed = closed_at_end(model(FakeEmbedding(), disk=disk)).embed_passages(["a"])
    assert computed == 1
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize("content", [b"not a database at all, whatever its name says" * 40, b""])
def test_unusable_cache_file_costs_speed_not_answers(tmp_path, closed_at_end, content):
    path = tmp_path / "v.sqlite"
    path.write_bytes(content)
    assert closed_at_end(model(FakeEmbedding(), disk=DiskVectorCache(path))).embed_passages(["a"])[1] == 1


def test_packed_vectors_are_used_for_their_model_only(tmp_path):
    vectors, _ = model(FakeEmbedding()).embed_passages(["a", "b"])
    PackedVectors.write(tmp_path / "p.npz", "test:model", {text_hash("a"): vectors[0], text_hash("b"): vectors[1]})
    packed = PackedVectors(tmp_path / "p.npz")
    again, computed = model(FakeEmbedding(), packed=[packed]).embed_passages(["a", "b", "c"])
    assert computed == 1
    assert np.allclose(again[:2], vectors, atol=2e-3)
    assert packed.get_many("other", [text_hash("a")]) == {}


def test_sixteen_threads_share_one_model():
    embedding = model(FakeEmbedding())
    want, _ = embedding.embed_passages([str(i) for i in range(16)])
    assert np.array_equal(in_threads(lambda i: embedding.embed_passages([str(i)])[0][0], range(16)), want)
