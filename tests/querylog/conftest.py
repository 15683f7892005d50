from __future__ import annotations

import getpass
import itertools
import os

import pytest

_numbers = itertools.count()


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


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """An empty place for a history, of both kinds."""
    return tmp_path / "queries.sqlite" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
