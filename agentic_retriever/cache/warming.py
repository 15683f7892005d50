"""Asking questions beforehand, so that their answers are there when somebody comes with them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import AgenticRetrieverError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_FILE_BYTES: Final = 64_000_000
"""Larger files of questions are refused."""

_JSON_SUFFIXES = (".jsonl", ".ndjson")


class WarmOutcome(str, Enum):
    """What became of one question."""

    CACHED = "cached"
    STORED = "stored"
    NOT_KEPT = "not_kept"


@dataclass(frozen=True, slots=True)
class WarmFailure:
    """A question that could not be answered, and why, in one line."""

    question: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """Return plain JSON types."""
        return {"question": self.question, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmReport:
    """What warming did.

    Attributes:
        asked: Questions asked.
        cached: Those whose answers were there already.
        stored: Those whose answers are there now.
        not_kept: Those whose answers are not worth keeping, such as degraded ones.
        failed: Those that raised.
        stopped: Why warming ended before the last question, or ``""``.
    """

    asked: int
    cached: int
    stored: int
    not_kept: int
    failed: tuple[WarmFailure, ...]
    stopped: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "asked": self.asked,
            "cached": self.cached,
            "stored": self.stored,
            "not_kept": self.not_kept,
            "failed": [failure.to_dict() for failure in self.failed],
            "stopped": self.stopped,
        }


def read_questions(path: str | Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read a list of questions: one a line, or, in a ``.jsonl`` or ``.ndjson`` file, one object with ``query`` a line.

    Args:
        path: The file, UTF-8.

    Returns:
        The questions, each once, in order; and what is wrong with other lines, one line each.

    Raises:
        SourceError: If the file cannot be read, or is larger than 64 MB.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as err:
        raise SourceError(f"cannot read {file}: {err.strerror or err}; pass a text file, one question a line") from err
    if len(content) > MAX_FILE_BYTES:
        raise SourceError(f"{file} is larger than {MAX_FILE_BYTES // 1_000_000} MB; split it into several files")
    read = _json_question if file.suffix.lower() in _JSON_SUFFIXES else str.strip
    questions: dict[str, None] = {}
    problems: list[str] = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            questions[read(line.decode("utf-8"))] = None
        except ValueError as err:
            what = "not UTF-8" if isinstance(err, UnicodeDecodeError) else str(err)
            problems.append(f"line {number}: {what}")
    return tuple(questions), tuple(problems)


def warm(
    ask: Callable[[str], WarmOutcome],
    questions: Sequence[str],
    *,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    stop_on: tuple[type[AgenticRetrieverError], ...] = (),
) -> WarmReport:
    """Ask questions one after another; one that fails does not keep the others from being asked.

    Args:
        ask: Asks one question and tells what became of its answer.
        questions: The questions.
        progress: Hears after each question how many are done, and of how many.
        stop_on: Errors after which the rest would fail alike, such as ``StoreError``.

    Returns:
        The counts, and what failed.
    """
    counts = dict.fromkeys(WarmOutcome, 0)
    failed: list[WarmFailure] = []
    stopped = ""
    for done, question in enumerate(questions, start=1):
        try:
            counts[ask(question)] += 1
        except AgenticRetrieverError as err:
            failed.append(WarmFailure(question, str(err)))
            stopped = str(err) if isinstance(err, stop_on) else ""
        progress(done, len(questions))
        if stopped:
            break
    return WarmReport(
        asked=sum(counts.values()) + len(failed),
        cached=counts[WarmOutcome.CACHED],
        stored=counts[WarmOutcome.STORED],
        not_kept=counts[WarmOutcome.NOT_KEPT],
        failed=tuple(failed),
        stopped=stopped,
    )


def _json_question(line: str) -> str:
    """Return the question of one JSON line.

    Raises:
        ValueError: If there is none.
    """
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as err:
        message = f"not JSON ({err.msg})" if isinstance(err, json.JSONDecodeError) else "nested too deeply"
        raise ValueError(message) from err
    question = row.get("query") if isinstance(row, dict) else None
    if not isinstance(question, str) or not question.strip():
        message = "no object with a text under 'query'"
        raise ValueError(message)
    return question.strip()
