"""``query`` and ``route``."""

from __future__ import annotations

import math
import sys
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import typer

from agentic_retriever.cli.console import load_config, opened_router, shown_steps
from agentic_retriever.errors import ConfigError, InvalidQueryError, LLMError

if TYPE_CHECKING:
    from pathlib import Path

    from agentic_retriever.cli.console import Console
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.schema import Answer, Budget, Citation


_QUOTE_CHARS = 160


def run_query(
    console: Console,
    data_dir: Path | None,
    text: str,
    *,
    index: str | None,
    strategy: str | None,
    top_k: int | None,
    as_json: bool,
    explain: bool,
    stream: bool = False,
    budget: Budget | None = None,
) -> None:
    """Answer a question."""
    with opened_router(load_config(data_dir)) as router:
        if stream:
            answer = _streamed(console, router, _question(text), index, strategy, top_k, budget)
        else:
            answer = router.query(_question(text), index=index, strategy=strategy, top_k=top_k, budget=budget)
        explanation = router.explanation(answer.route) if explain else None
    if as_json:
        console.json(answer.to_dict())
        return
    if not stream:
        console.line(answer.text, style="bold")
    show_facts(console, answer)
    if explanation is not None:
        console.line()
        for line in explanation.lines():
            console.line(line)
        steps = [(name, f"{ms:.1f}") for name, ms in answer.timings_ms.items()]
        console.table(["step", "ms"], steps, title="the whole query")


def _streamed(
    console: Console,
    router: AgenticRouter,
    text: str,
    index: str | None,
    strategy: str | None,
    top_k: int | None,
    budget: Budget | None,
) -> Answer:
    """Write the answer as it comes."""
    with router.stream(text, index=index, strategy=strategy, top_k=top_k, budget=budget) as pieces:
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


def run_route(
    console: Console, data_dir: Path | None, text: str, *, index: str | None, strategy: str | None, as_json: bool
) -> None:
    """Show a decision."""
    with opened_router(load_config(data_dir)) as router:
        explanation = router.explain(_question(text), index=index, strategy=strategy)
    if as_json:
        console.json(explanation.decision.to_dict())
        return
    for line in explanation.lines():
        console.line(line)


def show_answer(console: Console, answer: Answer) -> None:
    """Write the answer, its references, and one line on how it came about."""
    console.line(answer.text, style="bold")
    show_facts(console, answer)


def show_facts(console: Console, answer: Answer) -> None:
    """Write the references, and one line on how the answer came about."""
    if answer.citations:
        console.line()
    for citation in answer.citations:
        console.line(reference(citation))
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


def _show_path(console: Console, answer: Answer) -> None:
    """Write what was tried, spent and understood."""
    if len(answer.tried) > 1:
        tries = (f"{one.strategy.value} ({_grade(one.confidence)})" for one in answer.tried)
        console.line(f"little found at first, so tried {', '.join(tries)}", style="dim")
    if answer.usage.llm_calls:
        console.line(f"{answer.usage.llm_calls} model calls, {answer.usage.usd:.5f} USD", style="dim")
    if answer.understood:
        console.line("understood: " + "; ".join(answer.understood), style="dim")


def _grade(confidence: float | None) -> str:
    return "by words alone" if confidence is None else f"fits {confidence:.2f}"


def reference(citation: Citation) -> str:
    """Write a citation as one line of a reference list."""
    where = " › ".join(part for part in (citation.title or citation.doc_id, citation.section) if part)
    page = f", page {citation.page}" if citation.page else ""
    quote = " ".join(citation.quote.split())
    short = quote if len(quote) <= _QUOTE_CHARS else quote[: _QUOTE_CHARS - 1].rstrip() + "…"
    return f"[{citation.number}] {where}{page} ({citation.doc_id}:{citation.start}-{citation.end}) “{short}”"


def _question(text: str) -> str:
    """Return the question, read from standard input for ``-``."""
    return sys.stdin.read() if text == "-" else text


# ``stats``: what the query history shows.

_MOST_DAYS = 36_500


def run_stats(console: Console, data_dir: Path | None, *, days: float, as_json: bool) -> None:
    """Write the analytics of the last days; opens no index, so it works beside a running router."""
    from agentic_retriever.querylog import open_query_log

    if not (math.isfinite(days) and 0 <= days <= _MOST_DAYS):
        raise InvalidQueryError(f"days must be from 0 to {_MOST_DAYS:,}, got {days:g}")
    log = open_query_log(load_config(data_dir))
    if log is None:
        raise ConfigError("query_log is none, so there is no history; set it to sqlite or the URL of a database")
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


# ``warm``: questions asked beforehand.


def run_warm(console: Console, data_dir: Path | None, file: Path, *, as_json: bool) -> None:
    """Ask every question of a file; exit code 1 if one failed."""
    from agentic_retriever.cache import read_questions

    questions, problems = read_questions(file)
    for problem in problems:
        console.warn(problem)
    config = load_config(data_dir)
    if not config.redis_url:
        console.warn("no redis_url is set, so the answers are kept for this process only, which now ends")
    with opened_router(config) as router, shown_steps(console) as steps:
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
