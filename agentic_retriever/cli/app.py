"""The command line itself; what a command needs is loaded only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentic_retriever.cli.console import SHOW_TRACEBACK, Console, reported
from agentic_retriever.cli.demo import demo
from agentic_retriever.cli.doctor import doctor
from agentic_retriever.cli.indexes import index_app
from agentic_retriever.cli.queries import query, route, stats, warm

EXIT_CODES = (
    "Exit codes: 0 done; 1 something needs attention; 2 wrong command line; 3 setting; 4 question or filter; "
    "5 unknown index or strategy; 6 sources or index on disk; 7 index in use by another process; 8 model; "
    "9 nothing could be routed, retrieved or answered; 10 out of time; 130 interrupted; 141 output closed."
)

app = typer.Typer(
    name="agentic-retriever",
    help="Route questions to the right index and strategy, and answer them with citations.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(index_app, name="index")

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


def _show_version(value: bool) -> None:
    if value:
        from agentic_retriever import __version__

        Console().line(f"agentic-retriever {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    ctx: typer.Context,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Folder that holds the indexes.")] = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the stack of an unexpected error.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback reads it
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    ctx.obj = data_dir
    ctx.meta[SHOW_TRACEBACK] = traceback


for _command in (demo, query, route, doctor, stats):
    app.command()(_command)


@app.command("bench-routing")
@reported
def bench_routing(
    ctx: typer.Context,
    datasets: Datasets,
    vectors: Vectors = None,
    json_file: JsonFile = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw reliability diagrams into this .svg or .png.")
    ] = None,
    descriptions: Annotated[
        Path | None, typer.Option("--descriptions", help="JSON object from the names of data sets to descriptions.")
    ] = None,
    index: Annotated[
        list[str] | None, typer.Option("--index", help="Offer this index of the data directory too; may be repeated.")
    ] = None,
    complexity: Annotated[
        list[str] | None,
        typer.Option("--complexity", help="DATASET=simple or DATASET=complex, for questions that do not say."),
    ] = None,
    documents: Annotated[
        int, typer.Option("--documents", min=1, help="Most documents of a data set to embed without --vectors.")
    ] = 256,
    limit: Limit = None,
    seed: Seed = 0,
) -> None:
    """Measure how well questions are routed, beside LlamaIndex's selector and nearest utterances."""
    from agentic_retriever.cli.bench import run_bench_routing

    run_bench_routing(
        Console(), ctx.obj, datasets, vectors=vectors, descriptions=descriptions, also=tuple(index or ()),
        complexity=complexity or (), most_documents=documents, limit=limit, seed=seed, json_file=json_file, plot=plot,
    )  # fmt: skip


@app.command()
@reported
def bench(
    ctx: typer.Context,
    datasets: Datasets,
    strategies: Annotated[
        str | None, typer.Option("--strategies", help="Names with commas between, auto included; all by default.")
    ] = None,
    mode: Annotated[
        str, typer.Option("--mode", help="all, or round_robin: each question of one strategy, in turn.")
    ] = "all",
    vectors: Vectors = None,
    views: Annotated[
        bool, typer.Option("--views/--no-views", help="Build leaves and summaries, which some strategies need.")
    ] = True,
    limit: Limit = None,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Nodes fetched for a question.")] = 100,
    seed: Seed = 0,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="The row that the others are tested against; vector by default.")
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Measure LlamaIndex's retrievers, too.")] = False,
    answers: Annotated[bool, typer.Option("--answers", help="Answer the questions, too, and measure that.")] = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Keep the indexes in this folder, for the next run.")
    ] = None,
    json_file: JsonFile = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a report with plots into this file.")] = None,
) -> None:
    """Measure every strategy on labelled questions, beside the router's own choice and the best possible one."""
    from agentic_retriever.cli.bench import run_bench

    run_bench(
        Console(), ctx.obj, datasets, strategies=strategies, mode=mode, keep=keep, json_file=json_file,
        html_file=html_file, vectors=vectors, views=views, limit=limit, depth=depth, seed=seed, baseline=baseline,
        peers=peers, answers=answers,
    )  # fmt: skip


@app.command()
@reported
def train(
    ctx: typer.Context,
    index: Annotated[str, typer.Option("--index", help="The index to train.")],
    datasets: Annotated[
        list[str],
        typer.Argument(metavar="DATASET...", help="BEIR folders or .jsonl files of judged questions."),
    ],
    vectors: Vectors = None,
    limit: Limit = None,
    seed: Seed = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, but install nothing.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Fit hybrid's weights and the choice of the strategy of an index; install what helps."""
    from agentic_retriever.cli.bench import run_train

    run_train(
        Console(), ctx.obj, datasets, index=index, vectors=vectors, limit=limit, seed=seed, dry_run=dry_run,
        json_file=json_file,
    )  # fmt: skip


app.command()(warm)


def main() -> None:
    """Run the command line."""
    app()
