"""``bench``, ``bench-routing`` and ``train``: what is measured on labelled questions, and learned from them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentic_retriever.cli.terminal import Console, load_config, opened_router, router_of, shown_steps

if TYPE_CHECKING:
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.evaluation import Section
    from agentic_retriever.router import AgenticRouter

Datasets = Annotated[
    list[str],
    typer.Argument(metavar="DATASET...", help="BEIR folders or .jsonl files of questions; sample for those shipped."),
]
Vectors = Annotated[
    Path | None, typer.Option("--vectors", help="Folder with NAME.npz, or one such file; else texts are embedded.")
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the whole result into this file.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Most questions of each data set, drawn by the seed.")
]
Seed = Annotated[int, typer.Option("--seed", help="For whatever is drawn by chance.")]


def bench(
    ctx: typer.Context,
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATASET...", help="BEIR folders, folders of documents, .jsonl files, indexes; or sample."
        ),
    ] = None,
    strategies: Annotated[
        str | None, typer.Option(help="Names with commas between, auto included; all by default.")
    ] = None,
    mode: Annotated[str, typer.Option(help="all, or round_robin: each question of one strategy, in turn.")] = "all",
    vectors: Vectors = None,
    views: Annotated[
        bool, typer.Option("--views/--no-views", help="Build leaves and summaries, which some strategies need.")
    ] = True,
    limit: Limit = None,
    depth: Annotated[int, typer.Option(min=1, help="Nodes fetched for a question.")] = 100,
    seed: Seed = 0,
    baseline: Annotated[
        str | None, typer.Option(help="The row that the others are tested against; vector by default.")
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Measure LlamaIndex's retrievers, too.")] = False,
    answers: Annotated[bool, typer.Option("--answers", help="Answer the questions, too, and measure that.")] = False,
    intents: Annotated[
        bool, typer.Option("--intents", help="Ask questions of every intent, made of the documents themselves.")
    ] = False,
    gate: Annotated[
        bool, typer.Option("--gate", help="Hold answers and routing against targets, of the sample if none is named.")
    ] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep the indexes in this folder, for the next run.")] = None,
    json_file: JsonFile = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a report with plots into this file.")] = None,
) -> None:
    """Measure every strategy on labelled questions, beside the router's own choice and the best possible one."""
    from agentic_retriever.evaluation import BenchOptions, benchmark

    given = datasets or (["sample"] if gate else [])
    named = None if strategies is None else tuple(name.strip() for name in strategies.split(",") if name.strip())
    asked = BenchOptions(
        strategies=named, mode=mode.replace("-", "_"), vectors=vectors, views=views, limit=limit, depth=depth,
        seed=seed, baseline=baseline, peers=peers, answers=answers, intents=intents, gate=gate,
    )  # fmt: skip
    console, config = Console(), load_config(ctx.obj)
    with _folder(keep, json_file or html_file) as folder, ExitStack() as stack:
        if folder is None:
            console.note("interrupted, this run cannot go on; with --json, --html or --keep it can")
        with shown_steps(console) as steps:
            result = benchmark(_opened(config, given, stack), *given, options=asked, folder=folder, watcher=steps)
        if json_file is not None:
            result.to_json(json_file)
        if html_file is not None:
            result.to_html(html_file)
    for target in result.results.values():
        _show(console, target.tables(), warnings=target.warnings, remarks=target.remarks)
    _show(console, result.tables_over_all())
    if any(figure.met is False for figure in result.gate):
        raise typer.Exit(1)


def bench_routing(
    ctx: typer.Context,
    datasets: Datasets,
    vectors: Vectors = None,
    json_file: JsonFile = None,
    limit: Limit = None,
    seed: Seed = 0,
) -> None:
    """Measure how well questions are routed, beside LlamaIndex's selector and nearest utterances."""
    from agentic_retriever.evaluation import bench_routing as measure

    console, config = Console(), load_config(ctx.obj)
    with _folder(None, json_file) as folder, ExitStack() as stack:
        with shown_steps(console) as steps:
            router = _opened(config, datasets, stack)
            result = measure(router, *datasets, vectors=vectors, limit=limit, seed=seed, folder=folder, watcher=steps)
        if json_file is not None:
            _write_json(json_file, result.to_dict())
    _show(console, result.tables(), warnings=result.warnings, remarks=result.remarks)


def train(
    ctx: typer.Context,
    index: Annotated[str, typer.Option(help="The index to train.")],
    datasets: Annotated[
        list[str], typer.Argument(metavar="DATASET...", help="BEIR folders or .jsonl files of judged questions.")
    ],
    vectors: Vectors = None,
    limit: Limit = None,
    seed: Seed = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, but install nothing.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Fit the weights of hybrid search of an index and install them if they help; measure its strategies."""
    from agentic_retriever.evaluation import TrainingOptions, load_dataset, train_strategies

    console, given = Console(), [load_dataset(name, with_corpus=False) for name in datasets]
    options = TrainingOptions(vectors=vectors, limit=limit, seed=seed, dry_run=dry_run)
    with router_of(ctx) as router, shown_steps(console) as steps:
        trained = train_strategies(given, router, index, options, watcher=steps)
    if json_file is not None:
        _write_json(json_file, trained.to_dict())
    _show(console, trained.tables(), warnings=trained.warnings)


def _opened(config: RouterConfig, datasets: Sequence[str], stack: ExitStack) -> RouterConfig | AgenticRouter:
    """Open the data directory only where a data set may be the name of an index in it."""
    from agentic_retriever.catalog.address import Address
    from agentic_retriever.indices import IndexStorage

    names = {name for name in datasets if not Path(name).exists()}
    if not names & set(IndexStorage(config.data_dir, address=Address.from_config(config)).names()):
        return config
    return stack.enter_context(opened_router(config))


@contextmanager
def _folder(keep: Path | None, beside: Path | None) -> Iterator[Path | None]:
    """Keep what was done beside the result until that is written; with ``--keep``, for good."""
    if keep is not None or beside is None:
        yield keep
        return
    folder = beside.with_name(f".{beside.name}.partial")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


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
