"""One secret in every place that takes one; it must come out nowhere."""

import asyncio
import json
import logging
import traceback

import pytest
from command_line import environment, run_here, run_process
from llama_index.core.schema import Document
from model_servers import chat
from redis_servers import free_port
from settings_pages import configuration_markdown, env_example

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.config import PREFIX
from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.llm import TieredClient
from agentic_retriever.testing import FakeEmbedding

CANARY = "canary-4711-never-shown"
QUESTION = "How many hours does the zebrafinch sleep?"
QUESTION_WORD = "zebrafinch"
ANSWER = "The zebrafinch sleeps ten hours. [1]"
TEXT = "The zebrafinch sleeps ten hours. It sings at dawn."


@pytest.fixture
def records(caplog):
    """Every log record from DEBUG on, of all loggers."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="agentic_retriever")
    return caplog


def secret_settings(**changes):
    return {
        "openrouter_api_key": CANARY,
        "cohere_api_key": CANARY,
        "redis_url": f"redis://user:{CANARY}@127.0.0.1:{free_port()}/0",
    } | changes


@pytest.fixture
def cloud(make_server):
    """A stand-in for OpenRouter that answers well."""
    server = make_server()
    server.reply(chat("openrouter", ANSWER))
    return server


@pytest.fixture
def make(tmp_path, cloud, endpoints, closed_at_end):
    """Makes routers with the canary in every place, and one small index."""
    endpoints(retries=0)

    def _make(**changes):
        settings = secret_settings(llm="openrouter:some/model", openrouter_base_url=f"{cloud.url}/api/v1", **changes)
        config = RouterConfig(data_dir=tmp_path / "data", deadline_s=30.0, **settings)
        router = closed_at_end(AgenticRouter(config, embedding=FakeEmbedding(dimension=64)))
        if not router.index_names():
            router.add_index("birds", [Document(text=TEXT, doc_id="zebrafinch")], description="Birds")
        return router

    return _make


def everything(value):
    """All that a value shows of itself."""
    shown = [repr(value), str(value)]
    if hasattr(value, "to_dict"):
        shown.append(json.dumps(value.to_dict()))
    return shown


def raised(call):
    """All that an error shows, its causes and contexts included."""
    with pytest.raises(AgenticRetrieverError) as caught:
        call()
    return ["".join(traceback.format_exception(caught.value)), repr(caught.value), *map(repr, chain(caught.value))]


def chain(err):
    while err is not None:
        yield err
        yield err.args
        if isinstance(err, AgenticRetrieverError):
            yield vars(err)
        err = err.__cause__ or err.__context__


def logged(records):
    form = logging.Formatter("%(name)s %(message)s")
    return [form.format(record) for record in records.records]


def without_canary(shown):
    assert shown
    for text in shown:
        assert CANARY not in text


def test_values_show_no_secret(make, records):
    router = make()
    answer = router.query(QUESTION)
    assert answer.tier.value == "cloud"
    stream = router.stream(QUESTION + " Really?")
    stream.finish()
    model = router.resources.model
    values = [
        router.config, router, model, *model.order(), model.order()[0].endpoint, router.cache, router.cache.stats(),
        router.resources.redis, router.resources.redis.stats(), router._log, answer, answer.route,
        router.explain(QUESTION), router.retrieve(QUESTION), stream, stream.answer, *model.health(),
    ]  # fmt: skip
    without_canary([text for value in values for text in everything(value)])
    without_canary([answer._repr_html_(), json.dumps(router.config.to_dict()), *router.explain(QUESTION).lines()])
    without_canary(logged(records))


@pytest.mark.parametrize("code", [400, 401, 402, 404, 429, 500])
def test_failures_show_no_secret_even_when_the_server_repeats_it(make, cloud, records, code):
    cloud.reply({"error": {"message": f"the key {CANARY} is refused", "code": code}}, code)
    router = make()
    answer = router.query(QUESTION)
    assert answer.tier.value == "extractive"
    stream = router.stream(QUESTION + " Really?")
    stream.finish()
    without_canary([*everything(answer), *everything(stream.answer), *everything(router.resources.model.health()[0])])
    without_canary(raised(lambda: router.resources.model.complete("q")))
    alone = TieredClient([router.resources.model.order()[0]], timeout_s=5)
    without_canary(raised(lambda: alone.complete("q")))
    without_canary(logged(records))


def test_errors_of_settings_show_no_secret(tmp_path, records):
    wrong = {
        "openrouter_api_key": [CANARY], "redis_url": f"http://user:{CANARY}@host",
        "query_log": f"mysql://user:{CANARY}@host/db",
        "database_url": f"postgresql://user:{CANARY}@127.0.0.1:{free_port()}/none", "cohere_api_key": 4711,
        "top_k": -1,
    }  # fmt: skip
    for name, value in wrong.items():
        settings = secret_settings(**{name: value})
        without_canary(raised(lambda s=settings: AgenticRouter(RouterConfig(data_dir=tmp_path, **s)).query(QUESTION)))
    for url in (f"redis://user:{CANARY}@host:99999999/0", f"redis://user:{CANARY}@host/0?socket_timeout=x"):
        settings = secret_settings(redis_url=url)
        without_canary(raised(lambda s=settings: AgenticRouter(RouterConfig(data_dir=tmp_path, **s))))
    without_canary(logged(records) or ["nothing logged"])


def test_reranker_that_fails_shows_no_secret(make, records):
    try:
        shown = everything(make(reranker="cohere").query(QUESTION))
    except AgenticRetrieverError as err:  # without the package
        shown = raised(lambda failed=err: raise_again(failed))
    without_canary([*shown, *logged(records)])


def raise_again(err):
    raise err


def test_history_and_files_hold_and_show_no_secret(make, records, tmp_path):
    router = make()
    asyncio.run(router.aquery(QUESTION))
    without_canary(logged(records))
    assert router.analytics().queries == 1
    without_canary(everything(router.analytics()))
    router.close()
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert "catalog.sqlite" in [path.name for path in files]
    for path in files:
        assert CANARY.encode() not in path.read_bytes(), path.name


def test_own_loggers_and_the_example_of_settings_show_neither_question_nor_secret(make, cloud, records, monkeypatch):
    cloud.reply({"error": "x"}, 500)
    router = make(classifier="llm", selector="llm")
    router.query(QUESTION)
    router.retrieve(QUESTION, strategy="planner")
    router.stream(QUESTION + " Really?").finish()
    router.close()
    own = [form for form in logged(records) if form.startswith("agentic_retriever")]
    assert own  # the servers that are down are told
    for text in own:
        assert QUESTION_WORD not in text
    monkeypatch.setenv("OPENROUTER_API_KEY", CANARY)
    monkeypatch.setenv("REDIS_URL", f"redis://:{CANARY}@host")
    assert CANARY not in env_example() + configuration_markdown()


COMMANDS = {
    "doctor": ["doctor"], "query": ["--traceback", "query", QUESTION, "--explain"], "stats": ["--traceback", "stats"],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_command_line_shows_no_secret(tmp_path, cloud, command):
    cloud.reply({"error": {"message": f"the key {CANARY} is refused"}}, 401)
    settings = secret_settings(llm="openrouter:some/model", openrouter_base_url=f"{cloud.url}/api/v1")
    ours = {PREFIX + name.upper(): value for name, value in settings.items()}
    ours |= {PREFIX + "DATA_DIR": str(tmp_path / "data"), "EMBEDDING_MODEL": "local"}
    ours |= {"OLLAMA_BASE_URL": f"http://127.0.0.1:{free_port()}"}
    run = run_process if command == "query" else run_here  # one as people run it, the others two seconds faster
    done = run(tmp_path, *COMMANDS[command], env=environment(**ours))
    assert done.stdout + done.stderr
    assert CANARY not in done.stdout + done.stderr
