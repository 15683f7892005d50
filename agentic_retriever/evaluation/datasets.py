"""Data sets to measure with: BEIR folders, and files of labelled questions.

A **BEIR folder** (N. Thakur et al., "BEIR", NeurIPS 2021) holds ``corpus.jsonl``, ``queries.jsonl`` and
``qrels/*.tsv``: one index with questions of its own. An optional ``dataset.json`` may hold its ``description``.

A **questions file** is ``.jsonl`` with the fields ``query``, and as far as they are known ``id``, ``language``,
``index``, ``doc_ids``, ``strategy``, ``complexity``, ``answer`` and ``answerable``. The name ``sample`` stands for the
questions that ship with the package.

A ``.json`` file is what LlamaIndex's ``EmbeddingQAFinetuneDataset`` saves: ``queries``, ``corpus``, ``relevant_docs``.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar, runtime_checkable

from agentic_retriever.errors import EvaluationError
from agentic_retriever.ingestion import SourceDocument, discover, read_source
from agentic_retriever.sample import DATA, SAMPLE_INDEXES
from agentic_retriever.schema import Complexity, Strategy, frozen
from agentic_retriever.text import Tokenizer, detect_language, split_sentences
from agentic_retriever.text.centrality import central_sentences

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from agentic_retriever.indices import Index


# What was wrong with a data set: counted, listed, and said what was done about it.

MAX_LISTED: Final = 200
"""Problems of one kind in one file that are listed one by one; all are counted."""

_MAX_DETAIL: Final = 200


class ProblemKind(str, Enum):
    """What can be wrong, and what is done about it (see ``CONSEQUENCE``)."""

    BROKEN_LINE = "broken_line"
    MISSING_FIELD = "missing_field"
    BAD_FIELD = "bad_field"
    DUPLICATE_ID = "duplicate_id"
    BAD_JUDGMENT = "bad_judgment"
    UNKNOWN_QUERY = "unknown_query"
    UNKNOWN_DOCUMENT = "unknown_document"
    UNJUDGED_QUERY = "unjudged_query"
    UNLABELLED_QUERY = "unlabelled_query"
    DUPLICATE_VECTOR = "duplicate_vector"
    UNUSABLE_VECTOR = "unusable_vector"
    MISSING_DOCUMENT_VECTOR = "missing_document_vector"
    MISSING_QUERY_VECTOR = "missing_query_vector"
    COMPUTED_DOCUMENT_VECTOR = "computed_document_vector"
    COMPUTED_QUERY_VECTOR = "computed_query_vector"
    UNUSED_VECTOR = "unused_vector"


CONSEQUENCE: Final[Mapping[ProblemKind, str]] = frozen(
    {
        ProblemKind.BROKEN_LINE: "the line is left out",
        ProblemKind.MISSING_FIELD: "the record is left out",
        ProblemKind.BAD_FIELD: "the field is ignored",
        ProblemKind.DUPLICATE_ID: "the first one is kept",
        ProblemKind.BAD_JUDGMENT: "the judgment is left out",
        ProblemKind.UNKNOWN_QUERY: "the judgment is left out",
        ProblemKind.UNKNOWN_DOCUMENT: "the judgment is left out",
        ProblemKind.UNJUDGED_QUERY: "the query is not asked",
        ProblemKind.UNLABELLED_QUERY: "the query is not asked of stage one",
        ProblemKind.DUPLICATE_VECTOR: "the first one is kept",
        ProblemKind.UNUSABLE_VECTOR: "counts as missing",
        ProblemKind.MISSING_DOCUMENT_VECTOR: "the document counts by its words only",
        ProblemKind.MISSING_QUERY_VECTOR: "the query is not asked",
        ProblemKind.COMPUTED_DOCUMENT_VECTOR: "the document was embedded",
        ProblemKind.COMPUTED_QUERY_VECTOR: "the query was embedded",
        ProblemKind.UNUSED_VECTOR: "it is not used",
    }
)  # type: ignore[assignment]  # frozen() is typed for names, and every kind is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that was wrong."""

    kind: ProblemKind
    source: str
    detail: str
    line: int | None = None  # Line number from 1, or None

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.detail}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"kind": self.kind.value, "source": self.source, "line": self.line, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemReport:
    """All problems of one or several data sets."""

    counts: Mapping[str, int] = field(default_factory=dict)
    listed: tuple[Problem, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", frozen(self.counts))

    @property
    def total(self) -> int:
        """How many there are in all."""
        return sum(self.counts.values())

    def summary(self) -> list[str]:
        """Return one line for each kind: how many, what is done about them, and the first one."""
        first: dict[str, Problem] = {}
        for problem in self.listed:
            first.setdefault(problem.kind.value, problem)
        return [
            f"{count} x {kind.replace('_', ' ')} ({CONSEQUENCE[ProblemKind(kind)]}), first: {first[kind]}"
            for kind, count in self.counts.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "total": self.total,
            "counts": dict(self.counts),
            "listed": [problem.to_dict() for problem in self.listed],
        }

    @classmethod
    def merged(cls, reports: Iterable[ProblemReport]) -> ProblemReport:
        """Put several reports together."""
        counts: Counter[str] = Counter()
        listed: list[Problem] = []
        for report in reports:
            counts.update(report.counts)
            listed.extend(report.listed)
        return cls(counts=dict(sorted(counts.items())), listed=tuple(listed))


class ProblemLog:
    """Collects problems while a data set is read; not for several threads."""

    def __init__(self) -> None:
        self._counts: Counter[ProblemKind] = Counter()
        self._by_file: Counter[tuple[ProblemKind, str]] = Counter()
        self._listed: list[Problem] = []

    def add(self, kind: ProblemKind, source: object, detail: str, *, line: int | None = None) -> None:
        """Note a problem; beyond 200 of a kind in a file they are counted only."""
        name = str(source)
        self._counts[kind] += 1
        self._by_file[kind, name] += 1
        if self._by_file[kind, name] <= MAX_LISTED:
            short = " ".join(detail.split())[:_MAX_DETAIL]
            self._listed.append(Problem(kind=kind, source=name, detail=short, line=line))

    def report(self) -> ProblemReport:
        """Return what was collected so far."""
        counts = {kind.value: count for kind, count in sorted(self._counts.items(), key=lambda item: item[0].value)}
        return ProblemReport(counts=counts, listed=tuple(self._listed))


SAMPLE: Final = "sample"
"""Name of the data set that ships with the package."""


class DatasetKind(str, Enum):
    """What a data set brings."""

    BEIR = "beir"
    QUESTIONS = "questions"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuery:
    """One question with what is known about it."""

    query_id: str
    text: str
    index: str | None  # The index that answers it; None where none does or it is not known
    relevance: Mapping[str, int] = field(default_factory=dict)
    language: str = ""  # ISO 639-1 code, or ""
    strategy: Strategy | None = None  # The strategy that suits it, or None
    complexity: Complexity | None = None  # How hard it is, or None
    answer: str | None = None  # A right answer, or None
    answerable: bool = True
    pseudo: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "relevance", frozen(self.relevance))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set as it was read."""

    name: str
    path: Path
    kind: DatasetKind
    description: str = ""
    documents: tuple[SourceDocument, ...] = ()
    queries: tuple[LabelledQuery, ...] = ()
    problems: ProblemReport = field(default_factory=ProblemReport)

    @property
    def pseudo(self) -> bool:
        """Whether its questions were made of its own documents."""
        return any(query.pseudo for query in self.queries)

    def limited(self, most: int | None, seed: int) -> Dataset:
        """Return the data set with at most so many questions, drawn by a seed and in their order."""
        if most is None or len(self.queries) <= most:
            return self
        chosen = sorted(random.Random(seed).sample(range(len(self.queries)), most))  # noqa: S311 - a sample, no secret
        return replace(self, queries=tuple(self.queries[at] for at in chosen))

    def facts(self) -> dict[str, Any]:
        """Return what a result says of the data set, as plain JSON types."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "documents": len(self.documents),
            "queries": len(self.queries),
            "pseudo_queries": self.pseudo,
            "problems": dict(self.problems.counts),
        }


def check_names(datasets: Sequence[Dataset]) -> None:
    """See that data sets can be told apart."""
    seen: dict[str, Path] = {}
    for dataset in datasets:
        if dataset.name in seen:
            raise EvaluationError(
                f"two data sets are called {dataset.name!r} ({seen[dataset.name]} and {dataset.path}); rename one"
            )
        seen[dataset.name] = dataset.path


def empty(path: Path, what: str, problems: ProblemReport) -> EvaluationError:
    """Make the error for a file of which nothing can be used."""
    told = f" ({'; '.join(problems.summary()[:3])})" if problems.total else ""
    return EvaluationError(f"{path} holds no {what}{told}; check the file")


# JSON lines and judgments as they stand in files, with every broken line noted.

MAX_LINE_CHARS: Final = 10_000_000
"""Longer lines are broken ones."""

_COLUMNS: Final = 3


def read_records(path: Path, problems: ProblemLog) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Read the objects of a ``.jsonl`` file."""
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
    """Read a ``.tsv`` file of judgments: query id, document id and grade, separated by tabs."""
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
    """Yield number, from 1, and bytes of each line that is not blank."""
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


# BEIR folders: one index with questions of its own.

CORPUS, QUERIES, QRELS, ABOUT = "corpus.jsonl", "queries.jsonl", "qrels", "dataset.json"


def load_beir(folder: Path, *, with_corpus: bool = True, split: str | None = None) -> Dataset:
    """Read a BEIR folder; see ``load_dataset``."""
    problems = ProblemLog()
    name = folder.resolve().name
    documents = _documents(folder / CORPUS, problems) if with_corpus else ()
    texts = _query_texts(folder / QUERIES, problems)
    known = {document.doc_id for document in documents} if with_corpus else None
    judged = _judgments(folder, split, texts, known, problems)
    queries = []
    for query_id, text in texts.items():
        relevance = judged.get(query_id, {})
        if any(grade > 0 for grade in relevance.values()):
            queries.append(LabelledQuery(query_id=query_id, text=text, index=name, relevance=relevance))
        else:
            problems.add(ProblemKind.UNJUDGED_QUERY, folder / QUERIES, f"no relevant document for {query_id!r}")
    if not queries:
        raise empty(folder / QRELS, f"judgment of a question in {QUERIES}", problems.report())
    return Dataset(
        name=name,
        path=folder,
        kind=DatasetKind.BEIR,
        description=_description(folder / ABOUT),
        documents=documents,
        queries=tuple(queries),
        problems=problems.report(),
    )


def _documents(path: Path, problems: ProblemLog) -> tuple[SourceDocument, ...]:
    """Read the corpus as an index would."""
    _must_exist(path)
    documents: list[SourceDocument] = []
    for found in read_source(path, root=path):
        if isinstance(found, SourceDocument):
            documents.append(found)
            continue
        line = found.source.rpartition(":")[2]
        kind = ProblemKind.DUPLICATE_ID if found.reason.startswith("the id ") else ProblemKind.BROKEN_LINE
        problems.add(kind, path, found.reason, line=int(line) if line.isdigit() else None)
    if not documents:
        raise empty(path, "document", problems.report())
    return tuple(documents)


def _query_texts(path: Path, problems: ProblemLog) -> dict[str, str]:
    _must_exist(path)
    texts: dict[str, str] = {}
    for line, record in read_records(path, problems):
        query_id, text = text_id(record.get("_id", record.get("id"))), record.get("text")
        if query_id is None or not isinstance(text, str) or not text.strip():
            problems.add(ProblemKind.MISSING_FIELD, path, "a query needs _id and text", line=line)
        elif query_id in texts:
            problems.add(ProblemKind.DUPLICATE_ID, path, f"the id {query_id!r} is taken already", line=line)
        else:
            texts[query_id] = text
    if not texts:
        raise empty(path, "question", problems.report())
    return texts


def _judgments(
    folder: Path,
    split: str | None,
    queries: Mapping[str, str],
    documents: Collection[str] | None,
    problems: ProblemLog,
) -> dict[str, dict[str, int]]:
    files = sorted((folder / QRELS).glob(f"{split or '*'}.tsv")) if (folder / QRELS).is_dir() else []
    if not files:
        raise EvaluationError(f"{folder / QRELS} holds no {split or '*'}.tsv; a BEIR folder needs judgments")
    judged: dict[str, dict[str, int]] = {}
    for path in files:
        for line, query_id, doc_id, grade in read_judgments(path, problems):
            if query_id not in queries:
                problems.add(ProblemKind.UNKNOWN_QUERY, path, f"no query {query_id!r}", line=line)
            elif documents is not None and doc_id not in documents:
                problems.add(ProblemKind.UNKNOWN_DOCUMENT, path, f"no document {doc_id!r}", line=line)
            elif doc_id in judged.setdefault(query_id, {}):
                detail = f"{query_id!r} and {doc_id!r} are judged already"
                problems.add(ProblemKind.DUPLICATE_ID, path, detail, line=line)
            else:
                judged[query_id][doc_id] = grade
    return judged


def _description(path: Path) -> str:
    if not path.exists():
        return ""
    try:
        about: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise EvaluationError(f"cannot read {path} as JSON: {type(err).__name__}; mend it or remove it") from err
    described = about.get("description", "") if isinstance(about, dict) else None
    if not isinstance(described, str):
        raise EvaluationError(f"{path} must be an object whose description is a text")
    return described.strip()


def _must_exist(path: Path) -> None:
    if not path.is_file():
        raise EvaluationError(f"{path} is missing; a BEIR folder holds {CORPUS}, {QUERIES} and {QRELS}/*.tsv")


# Files of labelled questions about indexes that exist already.

E = TypeVar("E", bound=Enum)


def load_questions_file(path: Path) -> Dataset:
    """Read a questions file; see ``load_dataset``."""
    return _load([path], name=path.stem, place=path)


def load_sample() -> Dataset:
    """Read the questions that ship with the package."""
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


# LlamaIndex's ``EmbeddingQAFinetuneDataset``: a corpus, questions, and which documents answer them.

FIELDS: Final = ("queries", "corpus", "relevant_docs")

_MEMORY: Final = Path("(in memory)")


@runtime_checkable
class FinetuneDataset(Protocol):
    """What is read of an ``EmbeddingQAFinetuneDataset``; any object with these attributes will do."""

    @property
    def queries(self) -> Mapping[str, str]:
        """Text of each question, by id."""

    @property
    def corpus(self) -> Mapping[str, str]:
        """Text of each document, by id."""

    @property
    def relevant_docs(self) -> Mapping[str, list[str]]:
        """Ids of the documents that answer a question, by its id."""


def load_finetune_file(path: Path) -> Dataset:
    """Read the JSON file that ``EmbeddingQAFinetuneDataset.save_json`` wrote."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise EvaluationError(f"cannot read {path}: {err.strerror or type(err).__name__}; check the path") from err
    except (ValueError, RecursionError) as err:
        raise EvaluationError(f"{path} is not valid JSON ({type(err).__name__}); check the file") from err
    parts = {name: data.get(name) for name in FIELDS} if isinstance(data, dict) else {}
    return _dataset(parts, path.stem, path)


def finetune_dataset(given: FinetuneDataset, name: str = "finetune") -> Dataset:
    """Take an ``EmbeddingQAFinetuneDataset`` as a data set."""
    return _dataset({field: getattr(given, field) for field in FIELDS}, name, _MEMORY)


def _dataset(parts: Mapping[str, Any], name: str, path: Path) -> Dataset:
    wrong = [field for field in FIELDS if not isinstance(parts.get(field), Mapping)]
    if wrong:
        raise EvaluationError(
            f"{path} is no EmbeddingQAFinetuneDataset: {', '.join(wrong)} must be objects; it needs {', '.join(FIELDS)}"
        )
    problems = ProblemLog()
    documents = _documents_of_finetune_data(parts["corpus"], path, problems)
    known = {document.doc_id for document in documents}
    queries = _queries(parts["queries"], parts["relevant_docs"], known, (name, path), problems)
    if not documents or not queries:
        raise empty(path, "question with a document" if documents else "document", problems.report())
    return Dataset(
        name=name,
        path=path,
        kind=DatasetKind.BEIR,
        documents=tuple(documents),
        queries=tuple(queries),
        problems=problems.report(),
    )


def _documents_of_finetune_data(corpus: Mapping[str, Any], path: Path, problems: ProblemLog) -> list[SourceDocument]:
    documents = []
    for raw, text in corpus.items():
        doc_id = text_id(raw)
        if doc_id is None or not isinstance(text, str) or not text.strip():
            problems.add(ProblemKind.MISSING_FIELD, path, f"the document {str(raw)[:80]!r} has no id or no text")
            continue
        documents.append(
            SourceDocument(doc_id=doc_id, text=text, metadata={}, source="", root="", title="", kind="document")
        )
    return documents


def _queries(
    texts: Mapping[str, Any],
    relevant: Mapping[str, Any],
    known: set[str],
    place: tuple[str, Path],
    problems: ProblemLog,
) -> list[LabelledQuery]:
    name, path = place
    for raw in relevant:
        if raw not in texts:
            problems.add(ProblemKind.UNKNOWN_QUERY, path, f"no query {str(raw)[:80]!r}")
    queries = []
    for raw, text in texts.items():
        query_id = text_id(raw)
        if query_id is None or not isinstance(text, str) or not text.strip():
            problems.add(ProblemKind.MISSING_FIELD, path, f"the query {str(raw)[:80]!r} has no id or no text")
            continue
        relevance = _relevance(relevant.get(raw), known, path, problems)
        if relevance:
            queries.append(LabelledQuery(query_id=query_id, text=text, index=name, relevance=relevance))
        else:
            problems.add(ProblemKind.UNJUDGED_QUERY, path, f"no relevant document for {query_id!r}")
    return queries


def _relevance(given: object, known: set[str], path: Path, problems: ProblemLog) -> dict[str, int]:
    found: dict[str, int] = {}
    for raw in given if isinstance(given, (list, tuple, set)) else ():
        doc_id = text_id(raw)
        if doc_id is None or doc_id not in known:
            problems.add(ProblemKind.UNKNOWN_DOCUMENT, path, f"no document {str(raw)[:80]!r}")
        elif doc_id in found:
            problems.add(ProblemKind.DUPLICATE_ID, path, f"{doc_id!r} is named twice for one query")
        else:
            found[doc_id] = 1
    return found


# From what a person names to a data set.


def load_dataset(path: str | Path, *, with_corpus: bool = True, split: str | None = None) -> Dataset:
    """Read a data set."""
    place = Path(path)
    if str(path) == SAMPLE and not place.exists():
        return load_sample()
    if place.is_dir():
        return load_beir(place, with_corpus=with_corpus, split=split)
    if place.suffix.lower() == ".jsonl":
        return load_questions_file(place)
    if place.suffix.lower() == ".json" and place.exists():
        return load_finetune_file(place)
    what = "is neither a folder nor a .jsonl or .json file" if place.exists() else "does not exist"
    raise EvaluationError(
        f"{place} {what}; a data set is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/*.tsv), a .jsonl file of "
        f"questions, a .json file of an EmbeddingQAFinetuneDataset, or the word {SAMPLE}"
    )


# Questions made of a corpus itself, for want of real ones: titles, and sentences left out of their own document.
#
# They are no real questions: made of the very words of a document, they flatter search by words. Whatever is measured
# with them is marked as pseudo.

MOST_PSEUDO: Final = 200
"""Most questions that are made of one corpus."""

PSEUDO_NOTE: Final = (
    "the questions of {name} are pseudo-queries: {made} titles and sentences of its own documents, each left out of "
    "the document that it was taken from; they flatter search by words, so trust the order of strategies only with care"
)

_SHORTEST: Final = 24
_LONGEST: Final = 240
_LEAST_SENTENCES: Final = 3
_EXAMINED: Final = 20_000


def pseudo_dataset(
    name: str,
    path: Path,
    documents: Sequence[SourceDocument],
    *,
    most: int = MOST_PSEUDO,
    seed: int = 0,
    problems: ProblemReport | None = None,
) -> Dataset:
    """Make a data set of a corpus without questions.

    Documents drawn by the seed give one question each, in turn their title and their most central sentence (G. Erkan
    and D. Radev, "LexRank", JAIR 22, 2004), whichever they have. What became a question is removed from its document.
    """
    order = sorted(range(len(documents)), key=lambda at: documents[at].doc_id)
    random.Random(seed).shuffle(order)  # noqa: S311 - a sample, no secret
    changed = list(documents)
    queries: list[LabelledQuery] = []
    for at in order:
        if len(queries) >= most:
            break
        taken = _taken(documents[at], prefer_title=len(queries) % 2 == 0)
        if taken is None:
            continue
        text, changed[at] = taken
        doc_id = documents[at].doc_id
        queries.append(
            LabelledQuery(query_id=f"pseudo-{doc_id}", text=text, index=name, relevance={doc_id: 1}, pseudo=True)
        )
    if not queries:
        raise EvaluationError(
            f"{path} has no questions, and none of its {len(documents):,} documents has a title or "
            f"{_LEAST_SENTENCES} sentences to make one of; give queries.jsonl and qrels/*.tsv"
        )
    return Dataset(
        name=name,
        path=path,
        kind=DatasetKind.BEIR,
        documents=tuple(changed),
        queries=tuple(sorted(queries, key=lambda query: query.query_id)),
        problems=problems or ProblemReport(),
    )


def documents_below(folder: Path) -> tuple[list[SourceDocument], ProblemReport]:
    """Read every document of a file or folder that can be indexed; of a BEIR folder, its ``corpus.jsonl``."""
    corpus = folder / CORPUS
    root = corpus if corpus.is_file() else folder
    found: dict[str, SourceDocument] = {}
    problems = ProblemLog()
    for file in discover(root):
        for item in read_source(file, root=root):
            if not isinstance(item, SourceDocument):
                problems.add(ProblemKind.BROKEN_LINE, item.source, item.reason)
            elif item.doc_id in found:
                problems.add(ProblemKind.DUPLICATE_ID, file, f"the id {item.doc_id!r} is taken already")
            else:
                found[item.doc_id] = item
    if not found:
        raise EvaluationError(f"{folder} holds neither questions nor documents that can be indexed")
    return list(found.values()), problems.report()


def documents_of(index: Index) -> list[SourceDocument]:
    """Return the documents of an index as their source texts, without metadata."""
    found = []
    for doc_id in index.doc_ids():
        text = index.source_text(doc_id)
        if text:
            found.append(
                SourceDocument(doc_id=doc_id, text=text, metadata={}, source="", root="", title="", kind="document")
            )
    if not found:
        raise EvaluationError(f"index {index.name!r} has no source text to make questions of")
    return found


def _taken(document: SourceDocument, *, prefer_title: bool) -> tuple[str, SourceDocument] | None:
    """Take a question out of a document; return it and what is left."""
    ways = (_title, _sentence) if prefer_title else (_sentence, _title)
    for way in ways:
        taken = way(document)
        if taken is not None:
            return taken
    return None


def _title(document: SourceDocument) -> tuple[str, SourceDocument] | None:
    title = document.title.strip()
    if not _SHORTEST <= len(title) <= _LONGEST or not document.text.replace(title, "").strip():
        return None
    metadata = {key: value for key, value in document.metadata.items() if value != document.title}
    return title, replace(document, title="", text=document.text.replace(title, ""), metadata=metadata)


def _sentence(document: SourceDocument) -> tuple[str, SourceDocument] | None:
    text = document.text[:_EXAMINED]
    if len(split_sentences(text)) < _LEAST_SENTENCES:
        return None
    chosen = central_sentences([text], tokenizer=Tokenizer(detect_language(text)), room=1)
    sentence = chosen[0] if chosen else ""
    if not _SHORTEST <= len(sentence) <= _LONGEST:
        return None
    return " ".join(sentence.split()), replace(document, text=document.text.replace(sentence, ""))
