"""Measure every collection and write the tables of docs/benchmarks.md.

Usage: python scripts/benchmark_tables.py DATA_FOLDER [NAME ...] [--limit N] [--keep FOLDER] [--json FILE]
       [--page FILE]
       python scripts/benchmark_tables.py --from FILE [--page FILE]

DATA_FOLDER holds ``collections/NAME`` in BEIR form and ``embeddings/multilingual-e5-small/NAME.npz`` with vectors by
id. Parts of documents that these do not cover are embedded by the packaged model; with ``--keep`` only once. What
stands in the page outside the two markers is left as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_retriever.config import RouterConfig
from agentic_retriever.evaluation import BenchOptions, benchmark

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
MODEL = "multilingual-e5-small"
SURE = 0.05  # p after Holm's correction, below which a difference is marked


class Watcher:
    """Writes one line for every step."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def begin(self, what: str, total: int) -> None:
        """Name the step."""
        sys.stderr.write(f"{time.monotonic() - self._start:7.0f} s  {what} ({total})\n")

    def advance(self, done: int) -> None:
        """Ignore it."""


def measure(data: Path, names: list[str], limit: int | None, keep: Path) -> dict[str, Any]:
    """Run the benchmark over the collections and return its JSON."""
    options = BenchOptions(vectors=data / "embeddings" / MODEL, limit=limit, peers=True)
    config = RouterConfig(data_dir=keep / "data", embedding_model="local")
    found = [data / "collections" / name for name in names]
    return benchmark(config, *found, options=options, folder=keep, watcher=Watcher()).to_dict()


def tables(told: Mapping[str, Any]) -> str:
    """Write the tables in Markdown."""
    datasets: Mapping[str, Any] = told["datasets"]
    rows = list(dict.fromkeys(name for one in datasets.values() for name in one["strategies"]))
    lines = [_machine(told), "", _head(["row", *datasets, "mean", "mean R@10", "p50 ms", "p95 ms"])]
    for row in rows:
        mean = told["means"].get(row)
        means = ["-", "-"] if mean is None else [f"{mean['nDCG@10']:.3f}", f"{mean['R@10']:.3f}"]
        times = [_span(datasets, row, "p50_ms"), _span(datasets, row, "p95_ms")]
        lines.append(_line([f"`{row}`", *(_quality(one, row) for one in datasets.values()), *means, *times]))
    lines += ["", "How `auto` chooses:", "", _head(["", *datasets, "mean"]), *_choices(datasets, told["choice"])]
    return "\n".join(lines) + "\n"


def write_page(page: Path, text: str) -> None:
    """Put the tables between the markers of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def _machine(told: Mapping[str, Any]) -> str:
    machine, options = told["machine"], told["options"]
    versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items() if version)
    limit = "all questions" if options["limit"] is None else f"at most {options['limit']} questions a collection"
    return (
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Python {machine['python']}. "
        f"Versions: {versions}. Run: {limit}, {options['depth']} nodes fetched for a question, seed {told['seed']}."
    )


def _choices(datasets: Mapping[str, Any], over_all: Mapping[str, Any] | None) -> list[str]:
    shared = {
        "best fixed strategy": lambda one: f"{one['best_fixed']} {one['best_fixed_mean']:.3f}",
        "share of the gap closed": lambda one: "-" if one["gap_closed"] is None else f"{one['gap_closed']:.0%}",
    }
    own = {
        "chosen": lambda one: ", ".join(f"{name} {count}" for name, count in one["picked"].items()),
    }
    lines = []
    for name, figure in {**shared, **own}.items():
        cells = [figure(one["routing"]) if one["routing"] else "-" for one in datasets.values()]
        last = figure(over_all) if over_all and name in shared else ""
        lines.append(_line([name, *cells, last]))
    return lines


def _quality(one: Mapping[str, Any], row: str) -> str:
    """nDCG@10, with a star where it surely differs from the baseline."""
    if row not in one["strategies"]:
        return "-"
    test = (one["against"] or {"rows": {}})["rows"].get(row)
    sure = test is not None and test["p_holm"] < SURE
    return f"{one['strategies'][row]['nDCG@10']:.3f}" + ("*" if sure else "")


def _span(datasets: Mapping[str, Any], row: str, figure: str) -> str:
    """The lowest and the highest over the collections."""
    times = [one["strategies"][row][figure] for one in datasets.values() if row in one["strategies"]]
    return f"{min(times):.0f}-{max(times):.0f}"


def _head(cells: list[str]) -> str:
    return _line(cells) + "\n|" + "---|" * len(cells)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--limit", type=int, help="most questions of one collection, drawn by a seed")
    parser.add_argument("--keep", type=Path, default=Path("build/benchmarks"), help="folder of the indexes")
    parser.add_argument("--json", type=Path, help="write the whole result into this file")
    parser.add_argument("--from", dest="given", type=Path, help="take this result instead of measuring")
    page = Path(__file__).parents[1] / "docs" / "benchmarks.md"
    parser.add_argument("--page", type=Path, default=page, help="page that holds the two markers")
    options = parser.parse_args()
    if options.given is not None:
        told = json.loads(options.given.read_text(encoding="utf-8"))
    elif options.data is None:
        parser.error("name DATA_FOLDER, or a result with --from")
    else:
        names = options.names or sorted(path.name for path in (options.data / "collections").iterdir())
        told = measure(options.data, names, options.limit, options.keep)
    if options.json is not None:
        options.json.write_text(json.dumps(told, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    write_page(options.page, tables(told))


if __name__ == "__main__":
    main()
