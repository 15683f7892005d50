import pytest
from document_bench import Bench


@pytest.fixture(params=["sqlite", "postgresql"])
def bench(request, tmp_path, closed_at_end):
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return closed_at_end(Bench(tmp_path / "data", url))


@pytest.fixture
def local_bench(tmp_path, closed_at_end):
    return closed_at_end(Bench(tmp_path / "data"))
