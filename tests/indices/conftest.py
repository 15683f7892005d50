import time

import pytest
from command_line import Fork

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.indices import IndexStorage
from agentic_retriever.testing import FakeEmbedding


@pytest.fixture
def kill_while_running():
    """Runs code in other processes, kills each so long after it said "ready", and counts those not "done" by then."""

    def run(code, delays, *arguments):
        killed = 0
        for delay in delays:
            process = Fork(code, *arguments)
            assert process.stdout.readline().strip() == "ready"
            time.sleep(delay)
            process.kill()
            killed += "done" not in process.communicate()[0]
        return killed

    return run


@pytest.fixture
def base():
    return FakeEmbedding()


@pytest.fixture(scope="module")
def embedding():
    model = EmbeddingModel(FakeEmbedding(), name="fake")
    yield model
    model.close()


@pytest.fixture
def storage(tmp_path, closed_at_end):
    return closed_at_end(IndexStorage(tmp_path / "data"))
