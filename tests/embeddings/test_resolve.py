"""From a name in the settings to an embedding model, and back."""

from pathlib import Path

import pytest

from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import LocalEmbedding, embedding_name, ollama_models, resolve_embedding
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
    assert isinstance(embedding, LocalEmbedding) == (setting == "local")
    assert embedding_name(embedding) == name


def test_auto_takes_a_reachable_ollama_else_local_and_keeps_what_the_indexes_have(ollama):
    config = RouterConfig(ollama_base_url=ollama)
    assert embedding_name(resolve_embedding(config)) == "ollama:nomic-embed-text"
    assert embedding_name(resolve_embedding(RouterConfig(ollama_base_url=NOWHERE))).startswith("local:")
    assert isinstance(resolve_embedding(config, remembered="local:multilingual-e5-small-q4"), LocalEmbedding)
    folder = resolve_embedding(RouterConfig(embedding_model="local:/models/bge-m3"), remembered="local:bge-m3")
    assert (folder.folder, embedding_name(folder)) == (Path("/models/bge-m3"), "local:bge-m3")
    with pytest.raises(ConfigError, match="local:FOLDER"):
        resolve_embedding(RouterConfig(), remembered="local:bge-m3")
    with pytest.raises(ConfigError, match="pass that embedding object"):
        resolve_embedding(config, remembered="FakeEmbedding:fake-embedding")
    for name in ("locale", "ollama:", "openai:"):
        with pytest.raises(ConfigError, match="auto, local, local:FOLDER, ollama:MODEL or openai:MODEL"):
            resolve_embedding(RouterConfig(embedding_model=name))
    assert ollama_models(config) == ["nomic-embed-text:latest"]
    assert ollama_models(RouterConfig(ollama_base_url=NOWHERE)) is None
    with pytest.raises(ConfigError, match="http"):
        ollama_models(RouterConfig(ollama_base_url="file:///etc/passwd"))


def test_a_model_of_any_server_with_the_api_of_openai(make_server):
    server = make_server()
    server.reply(
        {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [3.0, 4.0]}]}
    )
    config = RouterConfig(embedding_model="openai:m", openai_base_url=f"{server.url}/v1", openai_api_key="sk-1")
    made = resolve_embedding(config)
    assert made.get_text_embedding("x") == [3.0, 4.0]
    ((path, body),) = server.requests
    assert (path, body["model"], server.authorization) == ("/v1/embeddings", "m", "Bearer sk-1")
    remembered = embedding_name(made)
    again = resolve_embedding(config.with_changes(embedding_model="auto"), remembered=remembered)
    assert (type(again), embedding_name(again)) == (type(made), remembered)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        resolve_embedding(RouterConfig(embedding_model="openai:m"))
    with pytest.raises(ConfigError, match="pass that embedding object"):
        resolve_embedding(RouterConfig(), remembered=remembered)
