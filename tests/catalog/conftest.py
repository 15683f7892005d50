import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """An empty place for a history, of both kinds."""
    return tmp_path / "queries.sqlite" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
