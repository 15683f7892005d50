from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import (
    KnownQueryEmbedding,
    LocalE5Embedding,
    embedding_name,
    ollama_models,
    resolve_embedding,
)
from agentic_retriever.errors import ConfigError
from agentic_retriever.testing import FakeEmbedding

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def ollama():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"models": [{"name": "nomic-embed-text:latest"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("setting", "name"), [("local", "local:multilingual-e5-small-q4"), ("ollama:some-model", "ollama:some-model")]
)
def test_a_model_by_name_makes_no_call(setting, name):
    embedding = resolve_embedding(RouterConfig(embedding_model=setting, ollama_base_url=NOWHERE))
    assert isinstance(embedding, LocalE5Embedding) == (setting == "local")
    assert embedding_name(embedding) == name


def test_auto_takes_a_reachable_ollama_else_local(ollama):
    assert embedding_name(resolve_embedding(RouterConfig(ollama_base_url=ollama))) == "ollama:nomic-embed-text"
    assert embedding_name(resolve_embedding(RouterConfig(ollama_base_url=NOWHERE))).startswith("local:")


def test_auto_keeps_what_the_indexes_have(ollama):
    config = RouterConfig(ollama_base_url=ollama)
    assert isinstance(resolve_embedding(config, remembered="local:multilingual-e5-small-q4"), LocalE5Embedding)
    with pytest.raises(ConfigError, match="pass that embedding object"):
        resolve_embedding(config, remembered="FakeEmbedding:fake-embedding")


@pytest.mark.parametrize("name", ["locale", "ollama:", "openai:x"])
def test_unknown_names_are_refused_with_the_known_ones(name):
    with pytest.raises(ConfigError, match="auto, local or ollama:MODEL"):
        resolve_embedding(RouterConfig(embedding_model=name))


def test_models_of_a_server(ollama):
    assert ollama_models(RouterConfig(ollama_base_url=ollama)) == ["nomic-embed-text:latest"]
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


async def test_known_questions_are_not_computed():
    base = FakeEmbedding(dimension=4)
    model = KnownQueryEmbedding(base, {"known": np.array([1, 0, 0, 0], dtype=np.float32)})
    assert model.get_query_embedding("known") == await model.aget_query_embedding("known") == [1.0, 0.0, 0.0, 0.0]
    assert base.calls == []
    assert model.get_query_embedding("other") == base.get_query_embedding("other")
    # What is known of a question says nothing of a passage with the same text.
    assert model.get_text_embedding_batch(["known"]) == [base.get_text_embedding("known")]
    assert embedding_name(model) == embedding_name(base) == "FakeEmbedding:fake-embedding"
