"""``warm``: questions asked beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from agentic_retriever.cli.progress import shown_steps
from agentic_retriever.cli.setup import load_config, opened_router

if TYPE_CHECKING:
    from pathlib import Path

    from agentic_retriever.cli.console import Console


def run_warm(console: Console, data_dir: Path | None, file: Path, *, as_json: bool) -> None:
    """Ask every question of a file; exit code 1 if one failed.

    Raises:
        SourceError: If the file cannot be read.
    """
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
