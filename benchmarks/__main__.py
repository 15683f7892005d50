"""``python -m benchmarks [NAME] [--nodes N]``: measure, print one table, write the results file."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import (
    answers,
    bm25,
    bm25_quality,
    cache,
    documents,
    embedding,
    ingest,
    prefilter,
    router_overhead,
    server,
    service,
    startup,
    vector_search,
)
from benchmarks.harness import RESULTS, BenchmarkSkippedError, Options, Row, say, table, write_results
from benchmarks.machine import load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_BUSY = 0.8

#: Every benchmark by name, in the order in which they run.
BENCHMARKS: dict[str, Callable[[Options], list[Row]]] = {
    "vector_search": vector_search.run,
    "prefilter": prefilter.run,
    "ingest": ingest.run,
    "bm25": bm25.run,
    "bm25_quality": bm25_quality.run,
    "embedding": embedding.run,
    "answers": answers.run,
    "startup": startup.run,
    "router_overhead": router_overhead.run,
    "cache": cache.run,
    "documents": documents.run,
    "service": service.run,
    "server": server.run,
}


def main(
    arguments: Sequence[str] | None = None,
    *,
    benchmarks: Mapping[str, Callable[[Options], list[Row]]] = BENCHMARKS,
) -> int:
    """Run the benchmarks that the command line names; an unknown name ends with the known ones and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure against the peers.")
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"one of: {', '.join(benchmarks)}; all by default")
    parser.add_argument("--nodes", type=int, help="most nodes in any collection, to try things quickly")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to write (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if chosen.name is not None and chosen.name not in benchmarks:
        parser.error(f"unknown benchmark {chosen.name!r}; known are: {', '.join(benchmarks)}")
    try:
        options = Options(nodes=chosen.nodes)
    except ValueError as err:
        parser.error(str(err))
    names = [chosen.name] if chosen.name else list(benchmarks)
    _run({name: benchmarks[name] for name in names}, options, chosen.results)
    return 0


def _run(benchmarks: Mapping[str, Callable[[Options], list[Row]]], options: Options, results: Path) -> None:
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    busy = load()
    if busy is not None and busy > _BUSY:
        say(f"other processes keep this machine busy (load {busy}); the figures, p95 above all, will suffer")
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for name, run in benchmarks.items():
        say(f"{name} ...")
        try:
            rows += run(options)
        except BenchmarkSkippedError as err:
            skipped[name] = str(err)
        # After each one, so that what was measured is kept when a later one fails.
        write_results(results, rows, skipped=skipped, when=when, load_before=busy)
    # In a pipe there is no width to keep to.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table(rows))
    for row in rows:
        console.print(f"{row.name}: {row.note}", markup=False, style="dim", highlight=False)
    for name, reason in skipped.items():
        console.print(f"skipped {name}: {reason}", markup=False)
    console.print(f"written to {results}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
