"""Files of labelled questions about indexes that exist already."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from agentic_retriever.evaluation.datasets import SAMPLE, Dataset, DatasetKind, LabelledQuery, empty
from agentic_retriever.evaluation.problems import ProblemKind, ProblemLog
from agentic_retriever.evaluation.records import read_records, text_id
from agentic_retriever.sample import DATA, SAMPLE_INDEXES
from agentic_retriever.schema import Complexity, Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

E = TypeVar("E", bound=Enum)


def load_questions_file(path: Path) -> Dataset:
    """Read a questions file; see ``load_dataset``.

    Raises:
        EvaluationError: If the file cannot be read or no question can be used.
    """
    return _load([path], name=path.stem, place=path)


def load_sample() -> Dataset:
    """Read the questions that ship with the package.

    Raises:
        EvaluationError: If the package is damaged.
    """
    return _load([index.questions for index in SAMPLE_INDEXES], name=SAMPLE, place=DATA / "questions")


def _load(paths: Sequence[Path], *, name: str, place: Path) -> Dataset:
    problems = ProblemLog()
    queries: dict[str, LabelledQuery] = {}
    for path in paths:
        for line, record in read_records(path, problems):
            query = _query(record, path, line, problems)
            if query is None:
                continue
            if query.query_id in queries:
                problems.add(ProblemKind.DUPLICATE_ID, path, f"the id {query.query_id!r} is taken already", line=line)
                continue
            queries[query.query_id] = query
    if not queries:
        raise empty(place, "question", problems.report())
    return Dataset(
        name=name,
        path=place,
        kind=DatasetKind.QUESTIONS,
        queries=tuple(queries.values()),
        problems=problems.report(),
    )


def _query(record: Mapping[str, Any], path: Path, line: int, problems: ProblemLog) -> LabelledQuery | None:
    text = record.get("query")
    if not isinstance(text, str) or not text.strip():
        problems.add(ProblemKind.MISSING_FIELD, path, "a question needs the field query", line=line)
        return None
    fields = _Fields(record, path, line, problems)
    index = fields.text("index") or None
    doc_ids = fields.doc_ids()
    answerable = fields.truth("answerable", default=index is not None or bool(doc_ids))
    if index is None and (answerable or "answerable" not in record):
        problems.add(
            ProblemKind.UNLABELLED_QUERY, path, "it names no index and does not say answerable: false", line=line
        )
        answerable = True
    return LabelledQuery(
        query_id=text_id(record.get("id")) or f"line-{line}",
        text=text,
        index=index,
        relevance=dict.fromkeys(doc_ids, 1),
        language=fields.text("language"),
        strategy=fields.choice("strategy", Strategy),
        complexity=fields.choice("complexity", Complexity),
        answer=fields.text("answer") or None,
        answerable=answerable,
    )


class _Fields:
    """The optional fields of one record; what has the wrong type is noted and ignored."""

    def __init__(self, record: Mapping[str, Any], path: Path, line: int, problems: ProblemLog) -> None:
        self._record = record
        self._path = path
        self._line = line
        self._problems = problems

    def text(self, name: str) -> str:
        value = self._record.get(name)
        if value is None or isinstance(value, str):
            return (value or "").strip()
        self._refuse(name, "a text")
        return ""

    def truth(self, name: str, *, default: bool) -> bool:
        value = self._record.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self._refuse(name, "true or false")
        return default

    def choice(self, name: str, kind: type[E]) -> E | None:
        value = self._record.get(name)
        allowed = {member.value: member for member in kind}
        if value is None or (isinstance(value, str) and value in allowed):
            return None if value is None else allowed[value]
        self._refuse(name, f"one of {', '.join(allowed)}")
        return None

    def doc_ids(self) -> tuple[str, ...]:
        value = self._record.get("doc_ids")
        if value is None:
            return ()
        ids = [text_id(item) for item in value] if isinstance(value, list) else [None]
        if None in ids:
            self._refuse("doc_ids", "a list of ids")
        return tuple(dict.fromkeys(item for item in ids if item is not None))

    def _refuse(self, name: str, wanted: str) -> None:
        got = str(self._record[name])[:40]
        self._problems.add(ProblemKind.BAD_FIELD, self._path, f"{name} must be {wanted}, got {got!r}", line=self._line)
