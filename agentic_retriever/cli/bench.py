"""``bench``, ``bench-routing`` and ``train``: what is measured on labelled questions, and learned from them."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_retriever.cli.console import Console, load_config, opened_router, shown_steps
from agentic_retriever.errors import ConfigError
from agentic_retriever.schema import Complexity

if TYPE_CHECKING:
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.evaluation import Dataset, Section
    from agentic_retriever.router import AgenticRouter


# ``bench``: every strategy on labelled questions, the router's own choice beside them, and the peers.


def run_bench(
    console: Console,
    data_dir: Path | None,
    datasets: Sequence[str],
    *,
    strategies: str | None,
    mode: str,
    keep: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    **options: Any,  # noqa: ANN401 - the fields of BenchOptions
) -> None:
    """Run the benchmark, write its files and show its tables; the options are those of ``BenchOptions``."""
    from agentic_retriever.evaluation import BenchOptions, benchmark

    named = None if strategies is None else tuple(name.strip() for name in strategies.split(",") if name.strip())
    asked = BenchOptions(strategies=named, mode=mode.replace("-", "_"), **options)
    config = load_config(data_dir)
    # What falls back is counted in the result; every single warning on the terminal would only tear the progress bar.
    logging.getLogger("agentic_retriever").addHandler(logging.NullHandler())
    with _folder(keep, json_file or html_file) as folder, ExitStack() as stack:
        if folder is None:
            console.note("interrupted, this run cannot go on; with --json, --html or --keep it can")
        with shown_steps(console) as steps:
            router = _opened(config, datasets, stack)
            result = benchmark(router, *datasets, options=asked, folder=folder, watcher=steps)
        if json_file is not None:
            result.to_json(json_file)
        if html_file is not None:
            result.to_html(html_file)
    for target in result.results.values():
        _show(console, target.tables(), warnings=target.warnings, remarks=target.remarks)
    _show(console, result.tables_over_all())


def _opened(config: RouterConfig, datasets: Sequence[str], stack: ExitStack) -> RouterConfig | AgenticRouter:
    """Open the data directory only where a data set may be the name of an index in it."""
    from agentic_retriever.indices import IndexStorage
    from agentic_retriever.router import AgenticRouter

    names = {name for name in datasets if not Path(name).exists()}
    if not names & set(IndexStorage(config.data_dir).names()):
        return config
    return stack.enter_context(AgenticRouter(config))


@contextmanager
def _folder(keep: Path | None, beside: Path | None) -> Iterator[Path | None]:
    """Keep what was done beside the result until that is written; with ``--keep``, for good."""
    if keep is not None or beside is None:
        yield keep
        return
    folder = beside.with_name(f".{beside.name}.partial")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


# ``bench-routing``: how well questions are routed, with the peers in the same table.


def run_bench_routing(
    console: Console,
    data_dir: Path | None,
    datasets: Sequence[str],
    *,
    complexity: Sequence[str],
    descriptions: Path | None,
    json_file: Path | None,
    plot: Path | None,
    **options: Any,  # noqa: ANN401 - the fields of RoutingOptions
) -> None:
    """Measure the routing; the options are those of ``RoutingOptions``."""
    from agentic_retriever.evaluation import RoutingOptions, bench_routing, load_dataset, prepare
    from agentic_retriever.evaluation.journal import Journal
    from agentic_retriever.evaluation.material import read_descriptions
    from agentic_retriever.evaluation.plots import check_plot, draw_reliability
    from agentic_retriever.evaluation.routing import material_key

    if plot is not None:
        check_plot(plot)
    described = {} if descriptions is None else read_descriptions(descriptions)
    asked = RoutingOptions(descriptions=described, complexity=_complexities(complexity), **options)
    given = [load_dataset(name) for name in datasets]
    config = _fitting(load_config(data_dir), given)
    with opened_router(config) as router, shown_steps(console) as steps:
        material = prepare(given, router, asked, watcher=steps)
        journal = None
        if json_file is not None:
            journal = Journal(
                json_file.with_name(f".{json_file.name}.partial"), material_key(material, config.to_dict())
            )
        with journal or nullcontext():
            result = bench_routing(material, router, journal=journal, watcher=steps)
    if json_file is not None:
        _write_json(json_file, result.to_dict())
    if journal is not None:
        journal.remove()
    if plot is not None:
        measured = {name: one.reliability for name, one in result.stage_one.items() if one.reliability is not None}
        draw_reliability(measured, plot)
    _show(console, result.tables(), warnings=result.warnings, remarks=result.remarks)


def _fitting(config: RouterConfig, datasets: Sequence[Dataset]) -> RouterConfig:
    """Take the embedding model of the sample's vectors where the sample is measured, as the demonstration does."""
    from agentic_retriever.evaluation.material import sample_indexes_of
    from agentic_retriever.indices import IndexStorage

    from_sample = sample_indexes_of(datasets, IndexStorage(config.data_dir).names())
    return config.with_changes(embedding_model="local") if from_sample else config


def _complexities(given: Sequence[str]) -> dict[str, Complexity]:
    allowed = {member.value: member for member in Complexity}
    found = {}
    for item in given:
        name, _, value = item.rpartition("=")
        if not name or value not in allowed:
            raise ConfigError(f"--complexity must be DATASET=simple or DATASET=complex, got {item[:80]!r}")
        found[name] = allowed[value]
    return found


# ``train``: what an index learns from judged questions.


def run_train(
    console: Console,
    data_dir: Path | None,
    datasets: Sequence[str],
    *,
    index: str,
    json_file: Path | None,
    **options: Any,  # noqa: ANN401 - the fields of TrainingOptions
) -> None:
    """Fit what an index can learn, and install what helps; the options are those of ``TrainingOptions``."""
    from agentic_retriever.evaluation import TrainingOptions, load_dataset, train_strategies

    given = [load_dataset(name, with_corpus=False) for name in datasets]
    with opened_router(load_config(data_dir)) as router, shown_steps(console) as steps:
        trained = train_strategies(given, router, index, TrainingOptions(**options), watcher=steps)
    if json_file is not None:
        _write_json(json_file, trained.to_dict())
    _show(console, trained.tables(), warnings=trained.warnings)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    from agentic_retriever.json_files import write_atomically

    content = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    write_atomically(path, (content + "\n").encode("utf-8", "surrogatepass"))


def _show(
    console: Console, sections: Sequence[Section], *, warnings: Sequence[str] = (), remarks: Sequence[str] = ()
) -> None:
    """Write tables; what is detail is left to the report."""
    for line in warnings:
        console.warn(line)
    for section in sections:
        if not section.detail:
            console.line()
            console.line(section.title, style="bold")
            if section.headers:
                console.table(section.headers, section.rows)
            for line in section.lines:
                console.line(line)
    for line in remarks:
        console.note(line)
