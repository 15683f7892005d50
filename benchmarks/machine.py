"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGES = (
    "agentic-retriever", "bm25s", "ir-measures", "llama-index-core", "llama-index-retrievers-bm25",
    "llama-index-vector-stores-qdrant", "numpy", "qdrant-client", "qdrant-edge-py",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """Describe the machine: processor, cores this process may use, memory in GB, Python and platform."""
    return {
        "cpu": _cpu_model(Path("/proc/cpuinfo")),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": _memory_gb(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def load() -> float | None:
    """Return how many processes wanted a core over the last minute; ``None`` where the platform does not tell."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Return the installed version of each package, ``None`` where it is absent."""
    return {name: _version(name) for name in packages}


def _cpu_model(cpuinfo: Path) -> str:
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, ValueError, OSError):  # not known on this platform
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
