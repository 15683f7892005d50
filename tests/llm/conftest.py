from __future__ import annotations

import model_servers
import pytest


@pytest.fixture
def server(make_server):
    return make_server()


@pytest.fixture
def chat():
    """Builds the body of a whole reply."""
    return model_servers.chat


@pytest.fixture
def stream_body():
    """Builds the body of a streamed reply."""
    return model_servers.stream_body


class FakeClock:
    """Seconds that pass only when somebody sleeps or ``tick`` says so."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def fake_clock():
    return FakeClock()
