"""The command line itself; each command's work is in a module that is loaded only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentic_retriever.cli.console import SHOW_TRACEBACK, Console, reported
from agentic_retriever.cli.indexes import index_app

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

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Question = Annotated[str, typer.Argument(metavar="TEXT", help="The question; - reads it from standard input.")]
PinnedIndex = Annotated[str | None, typer.Option("--index", help="Search this index whatever the router thinks.")]
PinnedStrategy = Annotated[str | None, typer.Option("--strategy", help="Use this strategy whatever the router thinks.")]
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


@app.command()
@reported
def demo(ctx: typer.Context) -> None:
    """Build three sample indexes and answer questions in three languages; needs no key and no server."""
    from agentic_retriever.cli.demo import run_demo

    run_demo(Console(), data_dir=ctx.obj)


@app.command()
@reported
def query(
    ctx: typer.Context,
    text: Question,
    index: PinnedIndex = None,
    strategy: PinnedStrategy = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Most nodes to retrieve.")] = None,
    as_json: AsJson = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show what was weighed and how long it took.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer as it is written.")] = False,
    max_ms: Annotated[float | None, typer.Option("--max-ms", help="Most milliseconds for the whole query.")] = None,
    max_usd: Annotated[float | None, typer.Option("--max-usd", help="Most money for model calls, in USD.")] = None,
    max_llm_calls: Annotated[int | None, typer.Option("--max-llm-calls", help="Most model calls; 0 asks none.")] = None,
) -> None:
    """Answer a question with citations."""
    from agentic_retriever.cli.queries import run_query
    from agentic_retriever.schema import Budget

    budget = Budget(max_ms=max_ms, max_usd=max_usd, max_llm_calls=max_llm_calls)
    run_query(
        Console(), ctx.obj, text, index=index, strategy=strategy, top_k=top_k, as_json=as_json, explain=explain,
        stream=stream and not as_json, budget=budget,
    )  # fmt: skip


@app.command()
@reported
def route(
    ctx: typer.Context,
    text: Question,
    index: PinnedIndex = None,
    strategy: PinnedStrategy = None,
    as_json: AsJson = False,
) -> None:
    """Show which index and strategy a question goes to, and why."""
    from agentic_retriever.cli.queries import run_route

    run_route(Console(), ctx.obj, text, index=index, strategy=strategy, as_json=as_json)


@app.command()
@reported
def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Check what is configured, reachable and indexed, and say what to do."""
    from agentic_retriever.cli.doctor import run_doctor

    run_doctor(Console(), ctx.obj, as_json=as_json)


@app.command()
@reported
def stats(
    ctx: typer.Context,
    days: Annotated[float, typer.Option("--days", min=0.0, help="Length of the period; 0 takes all there is.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show what was asked lately: routes, latency, cache hits, cost, fallbacks and errors."""
    from agentic_retriever.cli.queries import run_stats

    run_stats(Console(), ctx.obj, days=days, as_json=as_json)


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
    from agentic_retriever.cli.bench import RoutingArguments, run_bench_routing

    asked = RoutingArguments(
        datasets=tuple(datasets), vectors=vectors, descriptions=descriptions, also=tuple(index or ()),
        complexity=tuple(complexity or ()), documents=documents, limit=limit, seed=seed, json_file=json_file, plot=plot,
    )  # fmt: skip
    run_bench_routing(Console(), ctx.obj, asked)


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
    from agentic_retriever.cli.bench import BenchArguments, bench_options, run_bench

    options = bench_options(
        strategies=strategies, mode=mode, vectors=vectors, views=views, limit=limit, depth=depth, seed=seed,
        baseline=baseline, peers=peers, answers=answers,
    )  # fmt: skip
    asked = BenchArguments(
        datasets=tuple(datasets), options=options, keep=keep, json_file=json_file, html_file=html_file
    )
    run_bench(Console(), ctx.obj, asked)


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
    from agentic_retriever.cli.bench import TrainArguments, run_train

    asked = TrainArguments(
        datasets=tuple(datasets), index=index, vectors=vectors, limit=limit, seed=seed, dry_run=dry_run,
        json_file=json_file,
    )  # fmt: skip
    run_train(Console(), ctx.obj, asked)


@app.command()
@reported
def warm(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Questions, one a line, or .jsonl with a field query.")],
    as_json: AsJson = False,
) -> None:
    """Ask questions beforehand, so that their answers are in the cache; worth it with Redis, which others share."""
    from agentic_retriever.cli.queries import run_warm

    run_warm(Console(), ctx.obj, file, as_json=as_json)


def main() -> None:
    """Run the command line."""
    app()
