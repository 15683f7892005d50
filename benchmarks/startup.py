"""How long a command takes to start, beside importing the library that it stands on."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.harness import Row, Timing, seconds, timed_row

if TYPE_CHECKING:
    from benchmarks.harness import Options

RUNS = 7
TARGET_MS = 1000

_HELP = ("-m", "agentic_retriever", "--help")
_IMPORT = ("-c", "import agentic_retriever")
_PEER = ("-c", "import llama_index.core")


def run(options: Options) -> list[Row]:  # noqa: ARG001 - nothing here has a size
    """Measure fresh processes, ours and the peer's in turn; the first of each warms the disk and is not counted."""
    commands = (_HELP, _IMPORT, _PEER)
    taken: dict[tuple[str, ...], list[float]] = {command: [] for command in commands}
    for _ in range(RUNS + 1):
        for command in commands:
            taken[command].append(seconds(lambda c=command: _start(c)) * 1000)  # type: ignore[misc]  # a default
    shown, imported, peer = (Timing.of(taken[command][1:]) for command in commands)
    name = "import llama_index.core"
    return [
        timed_row("startup: --help", shown, peer=name, peer_timing=peer, target_ms=TARGET_MS),
        timed_row("startup: import agentic_retriever", imported, peer=name, peer_timing=peer),
    ]


def _start(arguments: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
