"""``query`` and ``route``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from agentic_retriever.cli.setup import load_config, opened_router

if TYPE_CHECKING:
    from pathlib import Path

    from agentic_retriever.cli.console import Console
    from agentic_retriever.schema import Answer, Citation, RouteDecision

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
) -> None:
    """Answer a question."""
    with opened_router(load_config(data_dir)) as router:
        answer = router.query(_question(text), index=index, strategy=strategy, top_k=top_k)
    if as_json:
        console.json(answer.to_dict())
        return
    show_answer(console, answer)
    if explain:
        console.line()
        show_route(console, answer.route)
        console.table(["step", "ms"], [(name, f"{ms:.1f}") for name, ms in answer.timings_ms.items()], title="timings")


def run_route(
    console: Console, data_dir: Path | None, text: str, *, index: str | None, strategy: str | None, as_json: bool
) -> None:
    """Show a decision."""
    with opened_router(load_config(data_dir)) as router:
        decision = router.route(_question(text), index=index, strategy=strategy)
    if as_json:
        console.json(decision.to_dict())
    else:
        show_route(console, decision)


def show_answer(console: Console, answer: Answer) -> None:
    """Write the answer, its references, and one line on how it came about."""
    console.line(answer.text, style="bold")
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
    if answer.understood:
        console.line("understood: " + "; ".join(answer.understood), style="dim")
    for lost in answer.degraded:
        console.warn(f"{lost.step} fell back to {lost.fallback}: {lost.reason}")


def reference(citation: Citation) -> str:
    """Write a citation as one line of a reference list."""
    where = " › ".join(part for part in (citation.title or citation.doc_id, citation.section) if part)
    page = f", page {citation.page}" if citation.page else ""
    quote = " ".join(citation.quote.split())
    short = quote if len(quote) <= _QUOTE_CHARS else quote[: _QUOTE_CHARS - 1].rstrip() + "…"
    return f"[{citation.number}] {where}{page} ({citation.doc_id}:{citation.start}-{citation.end}) “{short}”"


def show_route(console: Console, decision: RouteDecision) -> None:
    """Write both stages with the scores of every candidate."""
    for title, stage in (("index", decision.index), ("strategy", decision.strategy)):
        console.line(f"{title}: {stage.name} ({stage.mode}, confidence {stage.confidence:.2f}): {stage.reason}")
        console.table([title, "score"], [(name, f"{score:.3f}") for name, score in stage.scores.items()])
    console.line(f"complexity: {decision.complexity.value} ({decision.complexity_score:.2f})")
    signals = [(name, f"{value:.2f}") for name, value in decision.features.items() if value]
    if signals:
        console.table(["signal", "value"], signals)
    for lost in decision.degraded:
        console.warn(f"{lost.step} fell back to {lost.fallback}: {lost.reason}")


def _question(text: str) -> str:
    """Return the question, read from standard input for ``-``."""
    return sys.stdin.read() if text == "-" else text
