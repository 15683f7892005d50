"""The packaged model: what its batches promise, with a stand-in for the engine and with the engine itself."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import in_threads

from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import LocalE5Embedding, embedding_name, ollama_models, resolve_embedding
from agentic_retriever.embeddings import resolve as local
from agentic_retriever.errors import ConfigError

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def ollama(make_server):
    server = make_server()
    server.listing = b'{"models": [{"name": "nomic-embed-text:latest"}]}'
    return server.url


@pytest.mark.parametrize(
    ("setting", "name"), [("local", "local:multilingual-e5-small-q4"), ("ollama:some-model", "ollama:some-model")]
)
def test_a_model_by_name_makes_no_call(setting, name):
    embedding = resolve_embedding(RouterConfig(embedding_model=setting, ollama_base_url=NOWHERE))
    assert isinstance(embedding, LocalE5Embedding) == (setting == "local")
    assert embedding_name(embedding) == name


def test_auto_takes_a_reachable_ollama_else_local_and_keeps_what_the_indexes_have(ollama):
    config = RouterConfig(ollama_base_url=ollama)
    assert embedding_name(resolve_embedding(config)) == "ollama:nomic-embed-text"
    assert embedding_name(resolve_embedding(RouterConfig(ollama_base_url=NOWHERE))).startswith("local:")
    assert isinstance(resolve_embedding(config, remembered="local:multilingual-e5-small-q4"), LocalE5Embedding)
    with pytest.raises(ConfigError, match="pass that embedding object"):
        resolve_embedding(config, remembered="FakeEmbedding:fake-embedding")
    for name in ("locale", "ollama:", "openai:x"):
        with pytest.raises(ConfigError, match="auto, local or ollama:MODEL"):
            resolve_embedding(RouterConfig(embedding_model=name))
    assert ollama_models(config) == ["nomic-embed-text:latest"]
    assert ollama_models(RouterConfig(ollama_base_url=NOWHERE)) is None
    with pytest.raises(ConfigError, match="http"):
        ollama_models(RouterConfig(ollama_base_url="file:///etc/passwd"))


async def test_local_model_embeds_any_text(local_embedding):
    query = np.array(local_embedding.get_query_embedding("¿Cuánto cuesta?"))
    assert query.tolist() == await local_embedding.aget_query_embedding("¿Cuánto cuesta?")
    passages = np.array(local_embedding.get_text_embedding_batch(["El precio es 5.", "nul \0 and \ud800 surrogate"]))
    assert passages.shape == (2, 384)
    assert np.isfinite(passages).all()
    assert query @ passages[0] > query @ passages[1]


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
    model.get_text_embedding_batch(["one", "two"])  # one core's share is left to all of them
    assert engine.threads == {threading.current_thread()}
    assert engine.calls == [(["one question"], True), (["one passage"], False), (["one", "two"], False)]
    model.get_text_embedding_batch([f"passage {at}" for at in range(20)])
    assert sorted(len(texts) for texts, _ in engine.calls[3:]) == [2] * 10
    assert not any(is_query for _, is_query in engine.calls[3:])


def test_what_the_engine_raises_arrives(monkeypatch):
    model = stand_in(monkeypatch, Engine(refused="bad"))
    with pytest.raises(RuntimeError, match="cannot encode bad"):
        model.get_text_embedding_batch([*"abcdefgh", "bad"])
    assert model.get_text_embedding_batch(["good", "fine"]) == [model.get_text_embedding(t) for t in ("good", "fine")]


def test_the_engine_gives_the_same_in_batches_and_from_many_threads(local_embedding):
    texts = ["ferry", "pan de centeno", "โฉนดที่ดิน", "a\0b", "", "the keel of a boat " * 30] * 2
    alone = [local_embedding.get_text_embedding(text) for text in texts]
    for batch in in_threads(local_embedding.get_text_embedding_batch, [texts] * 4):
        assert np.allclose(batch, alone, atol=1e-6)


def test_other_threads_keep_their_number_of_openmp_threads(local_embedding):
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def openmp():
        return [one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "openmp"]

    before = openmp()
    local_embedding.get_text_embedding_batch(["one", "two", "three"])
    assert openmp() == before
