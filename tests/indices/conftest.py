import signal
import subprocess
import sys
import time

import pytest

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.indices import IndexStorage
from agentic_retriever.testing import FakeEmbedding


@pytest.fixture
def kill_while_running():
    """Runs code in other processes, kills each so long after it said "ready", and counts those not "done" by then."""

    def run(code, delays, *arguments):
        killed = 0
        for delay in delays:
            command = [sys.executable, "-c", code, *map(str, arguments)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout.readline().strip() == "ready"
                time.sleep(delay)
                process.send_signal(signal.SIGKILL)
                killed += "done" not in process.stdout.read()
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
def storage(tmp_path):
    opened = IndexStorage(tmp_path / "data")
    yield opened
    opened.close()
