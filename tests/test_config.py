import copy
import json
import pickle

import pytest
from pydantic import ValidationError

from agentic_retriever.config import PREFIX, REMOVED, SHARED, RouterConfig, Secret
from agentic_retriever.errors import ConfigError

CANARY = "sk-canary-51c0"


def test_which_variables_count_and_arguments_alone_make_a_configuration(monkeypatch):
    env = {"EMBEDDING_MODEL": "ollama:shared", f"{PREFIX}EMBEDDING_MODEL": "local"}
    assert RouterConfig.from_env(env).embedding_model == "local"
    assert RouterConfig.from_env({"EMBEDDING_MODEL": "ollama:shared"}).embedding_model == "ollama:shared"
    assert RouterConfig.from_env({f"{PREFIX}TOP_K": "  "}).top_k == RouterConfig().top_k
    assert RouterConfig.from_env({"TOP_K": "x", "PATH": "/bin"}) == RouterConfig()
    monkeypatch.setenv(f"{PREFIX}TOP_K", "3")
    assert (RouterConfig().top_k, RouterConfig.from_env().top_k) == (8, 3)
    names = ["EMBEDDING_MODEL", "OLLAMA_BASE_URL", "OPENROUTER_API_KEY", "COHERE_API_KEY", "REDIS_URL", "QDRANT_URL",
             "QDRANT_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_KEY", "DATABASE_URL"]  # fmt: skip
    assert {name.casefold() for name in names} == set(SHARED)
    for name in set(names) - {"REDIS_URL", "QDRANT_URL"}:
        value = getattr(RouterConfig.from_env({name: "http://x"}), name.casefold())
        assert getattr(value, "reveal", lambda value=value: value)() == "http://x"


@pytest.mark.parametrize(("variable", "value", "told"), [
    ("TOPK", "5", "did you mean 'AGENTIC_RETRIEVER_TOP_K'"), ("TOP_K", "five", "whole number (1 to 10000 nodes)"),
    ("TOP_K", "0", "got '0'"), ("TOP_K", "2.5", "whole number"), ("HYBRID_ALPHA", "1.5", "0 to 1"),
    ("HYBRID_ALPHA", "nan", "0 to 1"), ("DEADLINE_S", "inf", "seconds"), ("SELECTOR", "learned", "use auto"),
    ("FUSION", "sum", "one of calibrated, weighted, rrf, borda"), ("CHUNK_OVERLAP", "512", "below chunk_size"),
    ("RERANKER", "colbert", "none, llm, cross_encoder"), ("ADAPTIVE_TOP_K", "maybe", "true or false"),
])  # fmt: skip
def test_wrong_setting_is_named_with_what_is_allowed(variable, value, told):
    with pytest.raises(ConfigError) as caught:
        RouterConfig.from_env({PREFIX + variable: value})
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_types_and_unknown_settings_are_answered_with_the_nearest():
    for value in [True, None, [], 3.0, "x"]:
        with pytest.raises(ConfigError, match="top_k"):
            RouterConfig(top_k=value)
    with pytest.raises(ConfigError) as caught:
        RouterConfig(chunk_sise=9)
    assert "did you mean 'chunk_size'? (nearest: chunk_size, " in str(caught.value)
    assert sum(name in str(caught.value) for name in RouterConfig.model_fields) <= 4  # top_k is in adaptive_top_k
    assert RouterConfig().with_changes(top_k=7).top_k == 7
    with pytest.raises(ConfigError, match="did you mean 'top_k'"):
        RouterConfig().with_changes(topk=7)
    with pytest.raises(ConfigError, match="top_k"):
        RouterConfig().with_changes(top_k=-1)


@pytest.mark.parametrize("name", REMOVED)
def test_a_setting_that_is_gone_is_refused_in_python_and_only_told_in_an_old_file(name, tmp_path):
    with pytest.raises(ConfigError, match=f"setting {name} is gone: "):
        RouterConfig(**{name: 1})
    with pytest.raises(ConfigError, match=f"setting {name} is gone: "):
        RouterConfig().with_changes(**{name: 1})
    dotenv = tmp_path / ".env"
    dotenv.write_text(f"{PREFIX}{name.upper()}=1\n{PREFIX}TOP_K=7\n", encoding="utf-8")
    with pytest.warns(FutureWarning, match=f"{PREFIX}{name.upper()} is gone: "):
        assert RouterConfig.load(dotenv, env={}).top_k == 7


def test_config_is_frozen_and_a_value():
    config = RouterConfig(redis_url=CANARY)
    with pytest.raises(ValidationError):
        config.top_k = 3
    assert config == RouterConfig(redis_url=CANARY) != RouterConfig()
    assert len({config, RouterConfig(redis_url=CANARY)}) == 1
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


def test_dotenv_file_is_read_if_it_can_be_and_the_environment_wins(tmp_path):
    dotenv = tmp_path / ".env"
    dotenv.write_text(f"{PREFIX}TOP_K=7\n{PREFIX}WORKERS=2\nOTHER=1\n", encoding="utf-8")
    config = RouterConfig.load(dotenv, env={f"{PREFIX}WORKERS": "3"})
    assert (config.top_k, config.workers) == (7, 3)
    assert RouterConfig.load(tmp_path / "none", env={}) == RouterConfig()
    dotenv.write_bytes(b"\xff\xfe\x00\xd8KEY=\xff")
    with pytest.raises(ConfigError, match="cannot read"):
        RouterConfig.load(dotenv, env={})


def test_secrets_never_show_and_are_values():
    config = RouterConfig.from_env({"OPENROUTER_API_KEY": CANARY})
    assert config.openrouter_api_key.reveal() == CANARY
    shown = [repr(config), str(config), f"{config.openrouter_api_key}", json.dumps(config.to_dict())]
    shown += [str(config.openrouter_api_key), repr(config.model_dump()), config.model_dump_json()]
    with pytest.raises(TypeError):
        json.dumps({"key": config.openrouter_api_key})
    with pytest.raises(ConfigError) as caught:
        RouterConfig(openrouter_api_key=12345)
    shown.append(str(caught.value))
    assert not [text for text in shown if CANARY in text or "12345" in text]
    assert Secret("a") == Secret("a") != Secret("b")
    assert (copy.deepcopy(Secret("a")), len({Secret("a"), Secret("a")})) == (Secret("a"), 1)
    assert not Secret("")
