"""``query``, ``route``, ``stats`` and ``warm``."""

from __future__ import annotations

import math
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentic_retriever.cli import terminal
from agentic_retriever.errors import ConfigError, InvalidQueryError, LLMError

if TYPE_CHECKING:
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.schema import Answer


_MOST_DAYS = 36_500
_NEAREST = 3  # passages that are shown where nothing is answered


def query(
    ctx: typer.Context,
    text: terminal.Question,
    index: terminal.PinnedIndex = None,
    strategy: terminal.PinnedStrategy = None,
    top_k: Annotated[int | None, typer.Option(help="Most nodes to retrieve.")] = None,
    as_json: terminal.AsJson = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show what was weighed and how long it took.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer as it is written.")] = False,
    max_ms: Annotated[float | None, typer.Option(help="Most milliseconds for the whole query.")] = None,
    max_usd: Annotated[float | None, typer.Option(help="Most money for model calls, in USD.")] = None,
    max_llm_calls: Annotated[int | None, typer.Option(help="Most model calls; 0 asks none.")] = None,
) -> None:
    """Answer a question with citations."""
    from agentic_retriever.schema import Budget

    console, streams = terminal.Console(), stream and not as_json
    budget = Budget(max_ms=max_ms, max_usd=max_usd, max_llm_calls=max_llm_calls)
    wanted: dict[str, Any] = {"index": index or None, "strategy": strategy, "top_k": top_k, "budget": budget}
    with terminal.router_of(ctx) as router:
        asked = _read(text)
        answer = _streamed(console, router, asked, wanted) if streams else router.query(asked, **wanted)
        explanation = router.explanation(answer.route) if explain else None
    if as_json:
        console.json(answer.to_dict())
        return
    if not streams:
        console.line(answer.text, style="bold")
    show_facts(console, answer)
    if explanation is not None:
        console.line()
        for line in explanation.lines():
            console.line(line)
        steps = [(name, f"{ms:.1f}") for name, ms in answer.timings_ms.items()]
        console.table(["step", "ms"], steps, title="the whole query")


def _streamed(console: terminal.Console, router: AgenticRouter, text: str, wanted: dict[str, Any]) -> Answer:
    with router.stream(text, **wanted) as pieces:
        try:
            for piece in pieces:
                console.piece(piece)
        finally:
            console.end_pieces()
        answer = pieces.finish()
    if answer is None:
        raise LLMError("the answer was given up before its end; ask again")
    if answer.text != pieces.text:
        console.line()
        console.line(answer.text, style="bold")
    return answer


def route(
    ctx: typer.Context,
    text: terminal.Question,
    index: terminal.PinnedIndex = None,
    strategy: terminal.PinnedStrategy = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show which index and strategy a question goes to, and why."""
    console = terminal.Console()
    with terminal.router_of(ctx) as router:
        explanation = router.explain(_read(text), index=index or None, strategy=strategy)
    if as_json:
        console.json(explanation.decision.to_dict())
        return
    for line in explanation.lines():
        console.line(line)


def show_facts(console: terminal.Console, answer: Answer) -> None:
    """Write the references, or else the nearest passages, and one line on how the answer came about."""
    from agentic_retriever.show import node_row

    if answer.citations or answer.nodes:
        console.line()
    for citation in answer.citations:
        console.line(citation.reference)
    for at, found in enumerate(() if answer.citations else answer.nodes[:_NEAREST], start=1):
        _, _, source, text = node_row(at, found)
        console.line(f"nearest {at}: {source}: {text}")
    console.line()
    facts = [
        f"index {', '.join(answer.route.index.names)}",
        f"strategy {answer.route.strategy.name}",
        f"{answer.route.complexity.value} question",
        f"confidence {answer.confidence.score:.2f} ({answer.confidence.level.value.replace('_', ' ')})",
        f"tier {answer.tier.value}",
        f"{answer.timings_ms.get('total', 0.0):.0f} ms",
    ]
    console.line(" · ".join(facts), style="dim")
    _show_path(console, answer)
    for attempt in answer.attempts:
        if attempt.failure is not None:
            console.warn(str(attempt))
    unsupported = sum(not check.supported for check in answer.checks)
    if unsupported:
        console.warn(f"{unsupported} of {len(answer.checks)} sentences are not supported by what they cite")
    for lost in answer.degraded:
        console.warn(f"{lost.step} fell back to {lost.fallback}: {lost.reason}")


def _show_path(console: terminal.Console, answer: Answer) -> None:
    if len(answer.tried) > 1:
        tries = []
        for one in answer.tried:
            grade = "by words alone" if one.confidence is None else f"fits {one.confidence:.2f}"
            tries.append(f"{one.strategy.value} ({grade})")
        console.line(f"searched by {', '.join(tries)}", style="dim")
    if answer.usage.llm_calls:
        console.line(f"{answer.usage.llm_calls} model calls, {answer.usage.usd:.5f} USD", style="dim")
    if answer.understood:
        console.line("understood: " + "; ".join(answer.understood), style="dim")


def _read(text: str) -> str:
    """Return the question, read from standard input for ``-``."""
    asked = sys.stdin.read() if text == "-" else text
    if not any("\udc80" <= char <= "\udcff" for char in asked):  # how Python marks bytes that the locale has not
        return asked
    try:
        return os.fsencode(asked).decode()
    except UnicodeError as err:
        garbled = "the question is garbled: its bytes are not of this locale, nor UTF-8; check LC_ALL"
        raise InvalidQueryError(garbled) from err


def stats(
    ctx: typer.Context,
    days: Annotated[float, typer.Option(min=0.0, help="Length of the period; 0 takes all there is.")] = 30.0,
    as_json: terminal.AsJson = False,
) -> None:
    """Show what was asked lately: routes, latency, cache hits, cost, fallbacks and errors."""
    # Opens no index, so it works beside a running router.
    from agentic_retriever.catalog.history import open_query_log

    if not (math.isfinite(days) and 0 <= days <= _MOST_DAYS):
        raise InvalidQueryError(f"days must be from 0 to {_MOST_DAYS:,}, got {days:g}")
    console, log = terminal.Console(), open_query_log(terminal.load_config(ctx.obj))
    if log is None:
        raise ConfigError("query_log is none, so there is no history; set it to plain, hashed or no_text")
    since = datetime.now(timezone.utc) - timedelta(days=days) if days else None
    with log:
        found = log.analytics(since)
    if as_json:
        console.json(found.to_dict())
        return
    if not found.queries:
        console.note("no queries in this period" if days else "no queries yet")
        return
    for number, (title, headers, rows) in enumerate(found.tables()):
        if number:
            console.line()
        console.table(headers, rows, title=title)


def warm(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Questions, one a line, or .jsonl with a field query.")],
    as_json: terminal.AsJson = False,
) -> None:
    """Ask questions beforehand, so that their answers are in the cache; worth it with Redis, which others share."""
    from agentic_retriever.cache import read_questions

    console = terminal.Console()
    questions, problems = read_questions(file)
    for problem in problems:
        console.warn(problem)
    config = terminal.load_config(ctx.obj)
    if not config.redis_url:
        console.warn("no redis_url is set, so the answers are kept for this process only, which now ends")
    with terminal.opened_router(config) as router, terminal.shown_steps(console) as steps:
        steps.begin("questions", len(questions))
        report = router.warm(questions, progress=lambda _done, _total: steps.advance(1))
    if as_json:
        console.json({**report.to_dict(), "problems": list(problems)})
    else:
        console.line(
            f"{report.asked:,} asked: {report.stored:,} stored, {report.cached:,} there already, "
            f"{report.not_kept:,} not worth keeping, {len(report.failed):,} failed"
        )
        for failure in report.failed:
            console.warn(f"{failure.question[:80]}: {failure.reason}")
    if report.stopped:
        console.warn(f"stopped early: {report.stopped}")
    if report.failed or report.stopped:
        raise typer.Exit(1)
