import threading

import pytest


@pytest.fixture
def gate():
    """Opens at the end of a test, so that no thread is left waiting."""
    made = threading.Event()
    yield made
    made.set()
