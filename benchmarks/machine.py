"""What the figures were measured on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentic_retriever.evaluation import harness as measured
from agentic_retriever.evaluation.harness import machine

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PACKAGES", "load", "machine", "versions"]

PACKAGES = (
    "agentic-retriever", "bm25s", "ir-measures", "llama-index-core", "llama-index-retrievers-bm25",
    "llama-index-vector-stores-qdrant", "numpy", "qdrant-client", "qdrant-edge-py",
)  # fmt: skip


def load() -> float | None:
    """Return how many processes wanted a core over the last minute; ``None`` where the platform does not tell."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Return the installed version of each package, ``None`` where it is absent."""
    return measured.versions(packages)
