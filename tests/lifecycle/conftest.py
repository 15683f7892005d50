import pytest
from document_bench import Bench


@pytest.fixture(params=["sqlite", "postgresql"])
def bench(request, tmp_path):
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Bench(tmp_path / "data", url)
    yield made
    made.close()


@pytest.fixture
def local_bench(tmp_path):
    made = Bench(tmp_path / "data")
    yield made
    made.close()
