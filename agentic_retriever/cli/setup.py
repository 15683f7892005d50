"""From the command line's options to a router."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentic_retriever.config import RouterConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentic_retriever.router import AgenticRouter


def load_config(data_dir: Path | None) -> RouterConfig:
    """Read the settings; ``--data-dir`` wins.

    Raises:
        ConfigError: If a setting is unknown or does not fit.
    """
    # Warnings of our own reach a person through the command's output; those of libraries would only puzzle.
    logging.getLogger("agentic_retriever").addHandler(logging.NullHandler())
    config = RouterConfig.load()
    return config.with_changes(data_dir=data_dir) if data_dir is not None else config


@contextmanager
def opened_router(config: RouterConfig) -> Iterator[AgenticRouter]:
    """Make a router, and close it when the command is done."""
    from agentic_retriever.router import AgenticRouter

    with AgenticRouter(config) as router:
        yield router
