"""Measure every collection and write the tables of docs/benchmarks.md and docs/strategies.md.

Usage: python scripts/benchmark_tables.py DATA_FOLDER [NAME ...] [--limit N] [--keep FOLDER] [--json FILE]
       [--docs FOLDER]
       python scripts/benchmark_tables.py --from FILE [--docs FOLDER]

DATA_FOLDER holds ``collections/NAME`` in BEIR form and ``embeddings/multilingual-e5-small/NAME.npz`` with vectors by
id. Parts of documents that these do not cover are embedded by the packaged model; with ``--keep`` only once. What
stands in the pages outside the two markers is left as it is.
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
from agentic_retriever.schema import Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
MODEL = "multilingual-e5-small"


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
    lines = [_machine(told), "", "nDCG@10:", "", _head(["row", *datasets, "mean"])]
    for row in rows:
        cells = [
            f"{one['strategies'][row]['nDCG@10']:.3f}" if row in one["strategies"] else "-" for one in datasets.values()
        ]
        mean = f"{told['means'][row]['nDCG@10']:.3f}" if row in told["means"] else "-"
        lines.append(_line([f"`{row}`", *cells, mean]))
    lines += ["", "How `auto` chooses:", "", _head(["", *datasets, "mean"]), *_choices(datasets, told["choice"])]
    for name, one in datasets.items():
        lines += ["", f"### {name}", "", _facts(one), "", *_detail(one)]
    return "\n".join(lines) + "\n"


def strategies_table(told: Mapping[str, Any]) -> str:
    """Write nDCG@10 and R@10 of the strategies alone."""
    datasets: Mapping[str, Any] = told["datasets"]
    names = [strategy.value for strategy in Strategy]
    lines = [_machine(told), "", _head(["collection", *names])]
    for name, one in datasets.items():
        rows = [one["strategies"].get(strategy) for strategy in names]
        cells = ["-" if row is None else f"{row['nDCG@10']:.3f} / {row['R@10']:.3f}" for row in rows]
        lines.append(_line([name, *cells]))
    means = [told["means"].get(strategy) for strategy in names]
    cells = ["-" if mean is None else f"{mean['nDCG@10']:.3f} / {mean['R@10']:.3f}" for mean in means]
    return "\n".join([*lines, _line(["mean", *cells])]) + "\n"


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
        "`auto`": lambda one: f"{one['auto_mean']:.3f}",
        "`oracle`": lambda one: f"{one['oracle_mean']:.3f}",
        "share of the gap closed": lambda one: "-" if one["gap_closed"] is None else f"{one['gap_closed']:.0%}",
    }
    own = {
        "mean regret": lambda one: f"{one['mean_regret']:.3f}",
        "none was better": lambda one: f"{one['accuracy']:.0%}",
        "cheapest within 0.02": lambda one: one["cheapest_good"],
        "chosen": lambda one: ", ".join(f"{name} {count}" for name, count in one["picked"].items()),
    }
    lines = []
    for name, figure in {**shared, **own}.items():
        cells = [figure(one["routing"]) if one["routing"] else "-" for one in datasets.values()]
        last = figure(over_all) if over_all and name in shared else ""
        lines.append(_line([name, *cells, last]))
    return lines


def _facts(one: Mapping[str, Any]) -> str:
    marked = " (pseudo-queries)" if one["pseudo_queries"] else ""
    return f"{one['documents']:,} documents, {one['nodes']:,} nodes, {one['queries']:,} questions{marked}."


def _detail(one: Mapping[str, Any]) -> list[str]:
    against = one["against"] or {"baseline": "", "rows": {}}
    head = ["row", "nDCG@10 [95 %]", "R@10", "R@100", "RR", "AP", "p50 ms", "p95 ms", f"against {against['baseline']}"]
    lines = [_head(head)]
    for name, row in one["strategies"].items():
        low, high = row["intervals"]["nDCG@10"]
        test = against["rows"].get(name)
        tested = "" if test is None else f"{test['difference']:+.3f}, p {test['p_holm']:.2g}"
        measures = [f"{row[m]:.3f}" for m in ("R@10", "R@100", "RR", "AP")]
        times = [f"{row['p50_ms']:.1f}", f"{row['p95_ms']:.1f}"]
        lines.append(_line([f"`{name}`", f"{row['nDCG@10']:.3f} [{low:.3f}, {high:.3f}]", *measures, *times, tested]))
    return lines


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
    parser.add_argument("--docs", type=Path, default=Path(__file__).parents[1] / "docs", help="folder of the pages")
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
    write_page(options.docs / "benchmarks.md", tables(told))
    write_page(options.docs / "strategies.md", strategies_table(told))


if __name__ == "__main__":
    main()
