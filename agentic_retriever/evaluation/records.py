"""JSON lines and judgments as they stand in files, with every broken line noted."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NoReturn

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.problems import ProblemKind, ProblemLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAX_LINE_CHARS: Final = 10_000_000
"""Longer lines are broken ones."""

_COLUMNS: Final = 3


def read_records(path: Path, problems: ProblemLog) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Read the objects of a ``.jsonl`` file.

    Args:
        path: The file, in UTF-8, with or without a byte order mark; blank lines are passed over.
        problems: Hears of every line that holds no JSON object.

    Yields:
        Line number, from 1, and object.

    Raises:
        EvaluationError: If the file cannot be read.
    """
    for number, line in read_lines(path):
        try:
            record = _decoded(line)
        except (ValueError, RecursionError) as err:
            problems.add(ProblemKind.BROKEN_LINE, path, f"no JSON: {err}", line=number)
            continue
        if isinstance(record, dict):
            yield number, record
        else:
            problems.add(ProblemKind.BROKEN_LINE, path, f"a JSON {type(record).__name__}, not an object", line=number)


def read_judgments(path: Path, problems: ProblemLog) -> Iterator[tuple[int, str, str, int]]:
    """Read a ``.tsv`` file of judgments: query id, document id and grade, separated by tabs; a header is passed over.

    Args:
        path: The file.
        problems: Hears of every line that is no judgment.

    Yields:
        Line number, query id, document id and grade; grades below 0 count as 0.

    Raises:
        EvaluationError: If the file cannot be read.
    """
    for at, (number, raw) in enumerate(read_lines(path)):
        cells = [cell.strip() for cell in raw.decode("utf-8", errors="replace").split("\t")]
        grade = _grade(cells[2]) if len(cells) == _COLUMNS else None
        if grade is None or not cells[0] or not cells[1]:
            if at == 0 and len(cells) == _COLUMNS and cells[2].casefold() in {"score", "relevance", "grade", "label"}:
                continue
            problems.add(
                ProblemKind.BAD_JUDGMENT, path, "not query-id, corpus-id and a number, separated by tabs", line=number
            )
            continue
        yield number, cells[0], cells[1], grade


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number, from 1, and bytes of each line that is not blank.

    Raises:
        EvaluationError: If the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if text.strip():
                    yield number, text.rstrip(b"\r\n")
    except OSError as err:
        raise EvaluationError(
            f"cannot read {path}: {err.strerror or type(err).__name__}; check the path and its permissions"
        ) from err


def text_id(value: object) -> str | None:
    """Return an id as text, or ``None`` for what is none: ids are strings that are not blank, and whole numbers."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value).strip() or None


def _decoded(line: bytes) -> Any:  # noqa: ANN401 - decoded JSON
    if len(line) > MAX_LINE_CHARS:
        raise ValueError(f"the line is longer than {MAX_LINE_CHARS:,} bytes")
    return json.loads(line.decode(), parse_constant=_refuse)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _grade(cell: str) -> int | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return max(0, int(number)) if math.isfinite(number) else None
