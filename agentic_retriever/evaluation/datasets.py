"""Data sets to measure with: BEIR folders (N. Thakur et al., "BEIR", NeurIPS 2021), and files of labelled questions.

In gold spans, ``start`` and ``end`` count characters of the text; lines of one ``id`` are spans of one question.
"""

from __future__ import annotations

import json
import math
import random
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from llama_index.core.base.embeddings.base import BaseEmbedding
from typing_extensions import Self

from agentic_retriever.embeddings import embedding_name, text_hash
from agentic_retriever.errors import EvaluationError, SourceError
from agentic_retriever.evaluation.measures import Span
from agentic_retriever.indices import Index
from agentic_retriever.indices.derived import Watcher
from agentic_retriever.indices.profile import STRUCTURAL_FIELDS
from agentic_retriever.ingestion import SkippedSource, SourceDocument, discover, read_source
from agentic_retriever.ingestion.documents import MAX_SOURCE_BYTES, locate
from agentic_retriever.ingestion.readers import json_lines, json_record
from agentic_retriever.router import AgenticRouter
from agentic_retriever.sample import DATA, SAMPLE_INDEXES
from agentic_retriever.schema import Complexity, Record, Strategy

SAMPLE: Final = "sample"
CORPUS, QUERIES, QRELS, ABOUT = "corpus.jsonl", "queries.jsonl", "qrels", "dataset.json"
DOCS, QUESTIONS = "docs", "questions.jsonl"  # of a folder with gold spans
FINETUNE_FIELDS: Final = ("queries", "corpus", "relevant_docs")
MAX_LISTED: Final = 200  # problems of one kind in one file that are listed one by one; all are counted
_MAX_DETAIL: Final = 200
_GRADES: Final = {"score", "relevance", "grade", "label"}
_COLUMNS: Final = 3

E = TypeVar("E", bound=Enum)
V = TypeVar("V")


# What was wrong with a data set: counted, listed, and said what was done about it.


class ProblemKind(str, Enum):
    consequence: str

    def __new__(cls, value: str, consequence: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.consequence = consequence
        return member

    BROKEN_LINE = "broken_line", "the line is left out"
    MISSING_FIELD = "missing_field", "the record is left out"
    BAD_FIELD = "bad_field", "the field is ignored"
    DUPLICATE_ID = "duplicate_id", "the first one is kept"
    BAD_JUDGMENT = "bad_judgment", "the judgment is left out"
    UNKNOWN_QUERY = "unknown_query", "the judgment is left out"
    UNKNOWN_DOCUMENT = "unknown_document", "the judgment is left out"
    UNJUDGED_QUERY = "unjudged_query", "the query is not asked"
    UNLABELLED_QUERY = "unlabelled_query", "the query is not asked of stage one"
    DUPLICATE_VECTOR = "duplicate_vector", "the first one is kept"
    UNUSABLE_VECTOR = "unusable_vector", "counts as missing"
    COMPUTED_DOCUMENT_VECTOR = "computed_document_vector", "the document was embedded"
    COMPUTED_QUERY_VECTOR = "computed_query_vector", "the query was embedded"
    UNUSED_VECTOR = "unused_vector", "it is not used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Record):
    kind: ProblemKind
    source: str
    line: int | None = None  # from 1
    detail: str

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemReport(Record):
    counts: Mapping[str, int] = field(default_factory=dict)
    listed: tuple[Problem, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def summary(self) -> list[str]:
        """Return one line for each kind: how many, what is done about them, and the first one."""
        first = {problem.kind.value: problem for problem in reversed(self.listed)}
        return [
            f"{count} x {kind.replace('_', ' ')} ({first[kind].kind.consequence}), first: {first[kind]}"
            for kind, count in self.counts.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"total": self.total, **Record.to_dict(self)}

    @classmethod
    def merged(cls, reports: Iterable[ProblemReport]) -> ProblemReport:
        every = list(reports)
        counts = sum((Counter(report.counts) for report in every), Counter[str]())
        return cls(counts=dict(sorted(counts.items())), listed=tuple(one for report in every for one in report.listed))


class ProblemLog:
    """Collects problems while a data set is read; not for several threads."""

    def __init__(self) -> None:
        self._by_file: Counter[tuple[ProblemKind, str]] = Counter()
        self._listed: list[Problem] = []

    def add(self, kind: ProblemKind, source: object, detail: str, *, line: int | None = None) -> None:
        """Note a problem; beyond 200 of a kind in a file they are counted only."""
        name = str(source)
        self._by_file[kind, name] += 1
        if self._by_file[kind, name] <= MAX_LISTED:
            short = " ".join(detail.split())[:_MAX_DETAIL]
            self._listed.append(Problem(kind=kind, source=name, line=line, detail=short))

    def report(self) -> ProblemReport:
        counts = Counter(kind.value for kind, _ in self._by_file.elements())
        return ProblemReport(counts=dict(sorted(counts.items())), listed=tuple(self._listed))


# Questions and data sets.


class DatasetKind(str, Enum):
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
    strategy: Strategy | None = None  # The strategy that suits it
    complexity: Complexity | None = None
    answer: str | None = None  # A right answer
    answerable: bool = True
    pseudo: bool = False  # made of a document itself
    intent: str = ""  # what kind of thing it asks for, where that is known
    spans: tuple[Span, ...] = ()  # what relevance judges by their names, instead of documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    name: str
    path: Path
    kind: DatasetKind
    description: str = ""
    documents: tuple[SourceDocument, ...] = ()
    queries: tuple[LabelledQuery, ...] = ()
    problems: ProblemReport = field(default_factory=ProblemReport)
    notes: tuple[str, ...] = ()

    @property
    def pseudo(self) -> bool:
        return any(query.pseudo for query in self.queries)

    def limited(self, most: int | None, seed: int) -> Dataset:
        """Return the data set with at most so many questions, drawn by a seed and in their order."""
        if most is None or len(self.queries) <= most:
            return self
        chosen = sorted(random.Random(seed).sample(range(len(self.queries)), most))  # noqa: S311 - a sample, no secret
        return replace(self, queries=tuple(self.queries[at] for at in chosen))

    def about(self, index: Index) -> tuple[tuple[LabelledQuery, ...], ProblemReport]:
        """Return the questions that can be asked of an index, with the judgments of documents that it has."""
        held, log, kept = set(index.doc_ids()), ProblemLog(), []
        for query in self.queries:
            if self.kind is DatasetKind.QUESTIONS and (query.index not in {None, index.name} or not query.answerable):
                continue
            document = {span.name: span.doc_id for span in query.spans}
            relevance = {name: grade for name, grade in query.relevance.items() if document.get(name, name) in held}
            for name in query.relevance.keys() - relevance.keys():
                log.add(ProblemKind.UNKNOWN_DOCUMENT, self.path, f"index {index.name} has no document {name!r}")
            if any(grade > 0 for grade in relevance.values()):
                kept.append(replace(query, relevance=relevance))
            else:
                detail = f"no relevant document of {query.query_id!r} is in index {index.name}"
                log.add(ProblemKind.UNJUDGED_QUERY, self.path, detail)
        return tuple(kept), log.report()

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind.value,
            "documents": len(self.documents),
            "queries": len(self.queries),
            "pseudo_queries": self.pseudo,
            "problems": dict(self.problems.counts),
        }


def check_names(datasets: Sequence[Dataset]) -> None:
    seen: dict[str, Dataset] = {}
    for one in datasets:
        if one.name in seen:
            places = f"{seen[one.name].path} and {one.path}"
            raise EvaluationError(f"two data sets are called {one.name!r} ({places}); rename one")
        seen[one.name] = one


# From what a person names to a data set.


def load_dataset(path: str | Path, *, with_corpus: bool = True, split: str | None = None) -> Dataset:
    """Read a data set.

    Args:
        path: A BEIR folder, a ``.jsonl`` file of questions, a ``.json`` file of an ``EmbeddingQAFinetuneDataset``, or
            the word ``sample``.
        with_corpus: Whether the documents of a BEIR folder are read; without, judgments of any document count.
        split: Name of the file of judgments in a BEIR folder, such as ``"test"``; ``None`` reads all.

    Returns:
        The data set; what was wrong in it is in its ``problems``.

    Raises:
        EvaluationError: If nothing in it can be used.
    """
    place = Path(path)
    if str(path) == SAMPLE and not place.exists():
        return _questions([index.questions for index in SAMPLE_INDEXES], name=SAMPLE, place=DATA / "questions")
    if place.is_dir() and (place / QUESTIONS).is_file() and (place / DOCS).is_dir():
        return _span_folder(place)
    if place.is_dir():
        return _beir_folder(place, with_corpus=with_corpus, split=split)
    if place.suffix.lower() == ".jsonl":
        return _questions([place], name=place.stem, place=place)
    if place.suffix.lower() == ".json" and place.exists():
        data = read_json(place)
        return finetune_dataset(data if isinstance(data, dict) else {}, place.stem, place)
    what = "is neither a folder nor a .jsonl or .json file" if place.exists() else "does not exist"
    raise EvaluationError(
        f"{place} {what}; a data set is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/*.tsv), a folder with "
        f"{DOCS}/ and {QUESTIONS}, a .jsonl file of questions, a .json file of an EmbeddingQAFinetuneDataset, or the "
        f"word {SAMPLE}"
    )


def find_source(source: object, live: AgenticRouter | None = None) -> Dataset:
    """Return the data set that somebody means; documents alone are one without questions."""
    if isinstance(source, Dataset):
        return source
    if not isinstance(source, (str, Path)):
        parts = {name: getattr(source, name, None) for name in FINETUNE_FIELDS}
        if None in parts.values():
            raise EvaluationError(
                f"a data set must be a path, a Dataset or an EmbeddingQAFinetuneDataset, got {type(source).__name__}"
            )
        return finetune_dataset(parts, "finetune", Path("(in memory)"))
    path = Path(source)
    if path.is_dir() and not any((path / name).exists() for name in (QUERIES, QUESTIONS)):
        problems = ProblemLog()
        documents = read_documents(path / CORPUS if (path / CORPUS).is_file() else path, problems)
        name, kind = path.resolve().name, DatasetKind.BEIR
        return Dataset(name=name, path=path, kind=kind, documents=documents, problems=problems.report())
    if (path / QUERIES).exists() and not any((path / QRELS).glob("*.tsv")):
        raise EvaluationError(
            f"{path / QRELS} holds no *.tsv; a BEIR folder needs judgments. Without any, name a folder of the "
            f"documents alone, without {QUERIES}, or an index of them: questions are made of it"
        )
    if live is not None and not path.exists() and str(source) in live.index_names():
        index = live.index(str(source))
        return Dataset(name=index.name, path=path, kind=DatasetKind.BEIR, documents=_documents_of(index))
    return load_dataset(source)


def _documents_of(index: Index) -> tuple[SourceDocument, ...]:
    """Return the documents of an index whose text is known, with the metadata that all nodes of each share."""
    shared: dict[str, dict[str, object]] = {}
    for node in index.known_nodes():
        held = {key: value for key, value in node.metadata.items() if key == "title" or key not in STRUCTURAL_FIELDS}
        known = shared.setdefault(str(node.ref_doc_id), held)
        shared[str(node.ref_doc_id)] = {key: value for key, value in known.items() if held.get(key) == value}
    texts = ((doc_id, index.source_text(doc_id)) for doc_id in index.doc_ids())
    found = []
    for plain in (plain_document(doc_id, text) for doc_id, text in texts if text):
        metadata = shared.get(plain.doc_id, {})
        found.append(replace(plain, title=str(metadata.pop("title", "")), metadata=metadata))
    if not found:
        raise EvaluationError(f"index {index.name!r} has no source text to make questions of")
    return tuple(found)


def _empty(path: Path, what: str, problems: ProblemLog) -> EvaluationError:
    lines = "; ".join(problems.report().summary()[:3])
    return EvaluationError(f"{path} holds no {what}{f' ({lines})' if lines else ''}; check the file")


# BEIR folders and fine-tuning data: one index with questions and judgments of its own.


def _beir_folder(folder: Path, *, with_corpus: bool, split: str | None) -> Dataset:
    problems, name = ProblemLog(), folder.resolve().name
    for part in (CORPUS, QUERIES) if with_corpus else (QUERIES,):
        if not (folder / part).is_file():
            needed = f"{CORPUS}, {QUERIES} and {QRELS}/*.tsv"
            raise EvaluationError(f"{folder / part} is missing; a BEIR folder holds {needed}")
    documents = read_documents(folder / CORPUS, problems) if with_corpus else ()
    if with_corpus and not documents:
        raise _empty(folder / CORPUS, "document", problems)
    known = {document.doc_id for document in documents} if with_corpus else None
    texts = _query_texts(folder / QUERIES, problems)
    judgments = _judgments(folder, split, problems)
    queries = _judged_queries(texts, judgments, known, name, folder / QUERIES, problems)
    if not queries:
        raise _empty(folder / QRELS, f"judgment of a question in {QUERIES}", problems)
    about = read_json(folder / ABOUT, "mend it or remove it") if (folder / ABOUT).exists() else {}
    described = about.get("description", "") if isinstance(about, dict) else None
    if not isinstance(described, str):
        raise EvaluationError(f"{folder / ABOUT} must be an object whose description is a text")
    return Dataset(
        name=name, path=folder, kind=DatasetKind.BEIR, description=described.strip(), documents=documents,
        queries=queries, problems=problems.report(),
    )  # fmt: skip


def read_documents(place: Path, problems: ProblemLog) -> tuple[SourceDocument, ...]:
    """Read a file, or every document below a folder that can be indexed."""
    found: dict[str, SourceDocument] = {}
    for file in discover(place, follow_links=True):  # nothing of it is indexed, so it may lie anywhere
        for item in read_source(file, root=place, follow_links=True):
            if isinstance(item, SkippedSource):
                if item.kind == "unsupported":
                    continue
                line = item.source.rpartition(":")[2]
                kind = ProblemKind.DUPLICATE_ID if item.reason.startswith("the id ") else ProblemKind.BROKEN_LINE
                source, number = (file, int(line)) if line.isdigit() else (item.source, None)
                problems.add(kind, source, item.reason, line=number)
            elif found.setdefault(item.doc_id, item) is not item:
                problems.add(ProblemKind.DUPLICATE_ID, file, f"the id {item.doc_id!r} is taken already")
    return tuple(found.values())


def _query_texts(path: Path, problems: ProblemLog) -> dict[str, str]:
    texts: dict[str, str] = {}
    for line, record in _read_records(path, problems):
        query_id, text = _text_id(record.get("_id", record.get("id"))), record.get("text")
        if query_id is None or not isinstance(text, str) or not text.strip():
            problems.add(ProblemKind.MISSING_FIELD, path, "a query needs _id and text", line=line)
        elif query_id in texts:
            problems.add(ProblemKind.DUPLICATE_ID, path, f"the id {query_id!r} is taken already", line=line)
        else:
            texts[query_id] = text
    if not texts:
        raise _empty(path, "question", problems)
    return texts


class _Judgment(NamedTuple):
    query_id: str
    doc_id: str
    grade: int
    path: Path
    line: int | None = None


def _judged_queries(
    texts: Mapping[str, str],
    judgments: Iterable[_Judgment],
    documents: Collection[str] | None,
    index: str,
    path: Path,
    problems: ProblemLog,
) -> tuple[LabelledQuery, ...]:
    """Make the questions that have a relevant document; judgments of unknown ones are left out."""
    judged: dict[str, dict[str, int]] = {}
    for query_id, doc_id, grade, source, line in judgments:
        grades = judged.setdefault(query_id, {})
        if query_id not in texts:
            problems.add(ProblemKind.UNKNOWN_QUERY, source, f"no query {query_id[:80]!r}", line=line)
        elif documents is not None and doc_id not in documents:
            problems.add(ProblemKind.UNKNOWN_DOCUMENT, source, f"no document {doc_id[:80]!r}", line=line)
        elif doc_id in grades:
            problems.add(ProblemKind.DUPLICATE_ID, source, f"{query_id!r} and {doc_id!r} are judged already", line=line)
        else:
            grades[doc_id] = grade
    queries = []
    for query_id, text in texts.items():
        relevance = judged.get(query_id, {})
        if any(grade > 0 for grade in relevance.values()):
            queries.append(LabelledQuery(query_id=query_id, text=text, index=index, relevance=relevance))
        else:
            problems.add(ProblemKind.UNJUDGED_QUERY, path, f"no relevant document for {query_id!r}")
    return tuple(queries)


def _judgments(folder: Path, split: str | None, problems: ProblemLog) -> Iterator[_Judgment]:
    """Read the ``.tsv`` files of judgments: query id, document id and grade, separated by tabs."""
    files = sorted((folder / QRELS).glob(f"{split or '*'}.tsv")) if (folder / QRELS).is_dir() else []
    if not files:
        raise EvaluationError(f"{folder / QRELS} holds no {split or '*'}.tsv; a BEIR folder needs judgments")
    for path in files:
        for at, (number, raw) in enumerate(_read_lines(path)):
            cells = [cell.strip() for cell in raw.decode("utf-8", errors="replace").split("\t")]
            grade = _grade(cells[2]) if len(cells) == _COLUMNS else None
            if grade is not None and cells[0] and cells[1]:
                yield _Judgment(cells[0], cells[1], grade, path, number)
            elif at > 0 or len(cells) != _COLUMNS or cells[2].casefold() not in _GRADES:
                detail = "not query-id, corpus-id and a number, separated by tabs"
                problems.add(ProblemKind.BAD_JUDGMENT, path, detail, line=number)


def _grade(cell: str) -> int | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return max(0, int(number)) if math.isfinite(number) else None


def read_json(path: Path, advice: str = "check the path and the file") -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise EvaluationError(f"cannot read {path} as JSON: {type(err).__name__}; {advice}") from err


def _span_folder(folder: Path) -> Dataset:
    """Read questions whose right answers are spans of documents: lookups that people asked."""
    problems, name, path = ProblemLog(), folder.resolve().name, folder / QUESTIONS
    documents = read_documents(folder / DOCS, problems)
    lengths = {document.doc_id: len(document.text) for document in documents}
    queries: dict[str, LabelledQuery] = {}
    for line, record in _read_records(path, problems):
        text, doc_id = record.get("question"), record.get("doc")
        start, end = (place if type(place) is int else None for place in map(record.get, ("start", "end")))
        if not isinstance(text, str) or not text.strip() or start is None or end is None or not 0 <= start < end:
            detail = "a question needs question, doc, and start below end, in characters of the document"
            problems.add(ProblemKind.MISSING_FIELD, path, detail, line=line)
        elif not isinstance(doc_id, str) or end > lengths.get(doc_id, -1):
            detail = f"no document {str(doc_id)[:80]!r} of {end:,} characters is in {DOCS}/"
            problems.add(ProblemKind.UNKNOWN_DOCUMENT, path, detail, line=line)
        else:
            query_id, language = _text_id(record.get("id")) or f"line-{line}", record.get("language")
            known = queries.get(query_id)
            spans = tuple(dict.fromkeys([*(known.spans if known else ()), Span(doc_id, start, end)]))
            queries[query_id] = LabelledQuery(
                query_id=query_id, text=known.text if known else text, index=name, intent="lookup", spans=spans,
                relevance={span.name: 1 for span in spans}, language=language if isinstance(language, str) else "",
            )  # fmt: skip
    if not queries:
        raise _empty(path, "question about a document", problems)
    return Dataset(
        name=name, path=folder, kind=DatasetKind.BEIR, documents=documents, queries=tuple(queries.values()),
        problems=problems.report(),
    )  # fmt: skip


def finetune_dataset(parts: Mapping[str, Any], name: str, path: Path) -> Dataset:
    """Take the parts of an ``EmbeddingQAFinetuneDataset`` as a data set."""
    wrong = [part for part in FINETUNE_FIELDS if not isinstance(parts.get(part), Mapping)]
    if wrong:
        raise EvaluationError(
            f"{path} is no EmbeddingQAFinetuneDataset: {', '.join(wrong)} must be objects; it needs "
            f"{', '.join(FINETUNE_FIELDS)}"
        )
    problems = ProblemLog()
    texts: dict[str, dict[str, str]] = {"corpus": {}, "queries": {}}
    for part, found in texts.items():
        for raw, text in parts[part].items():
            name_of = _text_id(raw)
            if name_of is None or not isinstance(text, str) or not text.strip():
                what = "document" if part == "corpus" else "query"
                detail = f"the {what} {str(raw)[:80]!r} has no id or no text"
                problems.add(ProblemKind.MISSING_FIELD, path, detail)
            else:
                found[name_of] = text
    documents = {doc_id: plain_document(doc_id, text) for doc_id, text in texts["corpus"].items()}
    judgments = (
        _Judgment(str(query_id), str(doc_id), 1, path)
        for query_id, found in parts["relevant_docs"].items()
        for doc_id in (found if isinstance(found, (list, tuple, set)) else ())
    )
    queries = _judged_queries(texts["queries"], judgments, documents, name, path, problems)
    if not documents or not queries:
        raise _empty(path, "question with a document" if documents else "document", problems)
    return Dataset(
        name=name, path=path, kind=DatasetKind.BEIR, documents=tuple(documents.values()), queries=queries,
        problems=problems.report(),
    )  # fmt: skip


def plain_document(doc_id: str, text: str) -> SourceDocument:
    return SourceDocument(doc_id=doc_id, text=text, metadata={}, source="", root="", title="", kind="document")


# Files of labelled questions about indexes that exist already.


def _questions(paths: Sequence[Path], *, name: str, place: Path) -> Dataset:
    problems = ProblemLog()
    queries: dict[str, LabelledQuery] = {}
    for path in paths:
        for line, record in _read_records(path, problems):
            query = _query(record, path, line, problems)
            if query is not None and queries.setdefault(query.query_id, query) is not query:
                problems.add(ProblemKind.DUPLICATE_ID, path, f"the id {query.query_id!r} is taken already", line=line)
    if not queries:
        raise _empty(place, "question", problems)
    asked = tuple(queries.values())
    return Dataset(name=name, path=place, kind=DatasetKind.QUESTIONS, queries=asked, problems=problems.report())


def _query(record: Mapping[str, Any], path: Path, line: int, problems: ProblemLog) -> LabelledQuery | None:
    text = record.get("query")
    if not isinstance(text, str) or not text.strip():
        problems.add(ProblemKind.MISSING_FIELD, path, "a question needs the field query", line=line)
        return None
    fields = _Fields(record, path, line, problems)
    index = fields.get("index", "a text", _stripped) or None
    given = record.get("doc_ids")
    ids = [_text_id(item) for item in given] if isinstance(given, list) else [None]
    fields.get("doc_ids", "a list of ids", lambda _: None if None in ids else ids)
    relevance = {doc_id: 1 for doc_id in ids if doc_id is not None}
    said = fields.get("answerable", "true or false", lambda value: value if isinstance(value, bool) else None)
    answerable = (index is not None or bool(relevance)) if said is None else said
    if index is None and (answerable or "answerable" not in record):
        detail = "it names no index and does not say answerable: false"
        problems.add(ProblemKind.UNLABELLED_QUERY, path, detail, line=line)
        answerable = True
    return LabelledQuery(
        query_id=_text_id(record.get("id")) or f"line-{line}",
        text=text,
        index=index,
        relevance=relevance,
        language=fields.get("language", "a text", _stripped) or "",
        strategy=fields.member("strategy", Strategy),
        complexity=fields.member("complexity", Complexity),
        answer=fields.get("answer", "a text", _stripped) or None,
        answerable=answerable,
    )


class _Fields(NamedTuple):
    record: Mapping[str, Any]
    path: Path
    line: int
    problems: ProblemLog

    def get(self, name: str, wanted: str, read: Callable[[Any], V | None]) -> V | None:
        """Return an optional field; one that cannot be read is noted and ignored."""
        value = self.record.get(name)
        found = None if value is None else read(value)
        if value is not None and found is None:
            detail = f"{name} must be {wanted}, got {str(value)[:40]!r}"
            self.problems.add(ProblemKind.BAD_FIELD, self.path, detail, line=self.line)
        return found

    def member(self, name: str, kind: type[E]) -> E | None:
        allowed = {one.value: one for one in kind}
        wanted = f"one of {', '.join(allowed)}"
        return self.get(name, wanted, lambda value: allowed.get(value) if isinstance(value, str) else None)


def _stripped(value: object) -> str | None:
    return value.strip() if isinstance(value, str) else None


# Lines as they stand in files, with every broken one noted.


def _read_records(path: Path, problems: ProblemLog) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in _read_lines(path):
        try:
            yield number, json_record(line, MAX_SOURCE_BYTES)
        except SourceError as err:  # noqa: PERF203 - a broken line costs no other one
            problems.add(ProblemKind.BROKEN_LINE, path, str(err), line=number)


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number, from 1, and bytes of each line that is not blank."""
    try:
        yield from json_lines(locate(path, root=path, max_bytes=MAX_SOURCE_BYTES))
    except SourceError as err:
        raise EvaluationError(f"{path} {err}") from err


def _text_id(value: object) -> str | None:
    """Return an id as text, or ``None`` for what is none: ids are strings that are not blank, and whole numbers."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value).strip() or None


# Vectors of documents and questions: given in ``.npz`` files and held against the model, or computed.

Vector = npt.NDArray[np.float32]

ARRAYS: Final = ("doc_ids", "doc_vectors", "query_ids", "query_vectors")
SAME_MODEL: Final = 0.95  # cosine of two vectors of one text above which they come from the same model
_MIN_NORM: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVectors:
    documents: Mapping[str, Vector] = field(default_factory=dict)  # By document id, (dimension,) float32 each
    queries: Mapping[str, Vector] = field(default_factory=dict)  # By query id, likewise
    origin: str = ""  # "" where none are given
    problems: ProblemReport = field(default_factory=ProblemReport)


class Asked(NamedTuple):
    queries: tuple[LabelledQuery, ...]
    vectors: Mapping[str, Vector]  # By query id, of length 1
    embedding_ms: tuple[float, ...] = ()  # Milliseconds for each question that had to be embedded


class GivenVectors:
    """Known vectors of passages and questions, by the hash of their text; a ``VectorSource``."""

    def __init__(self, model: str, vectors: Mapping[bytes, Vector]) -> None:
        self._model = model
        self._vectors = vectors

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        return {key: self._vectors[key] for key in hashes if key in self._vectors} if model == self._model else {}


def passage(document: SourceDocument) -> str:
    return f"{document.title}\n{document.text}".strip()


def vectors_file(place: Path, name: str) -> Path:
    if place.is_dir():
        return place / f"{name}.npz"
    if place.is_file():
        return place
    raise EvaluationError(f"{place} does not exist; name a folder with NAME.npz files, or one such file")


def load_vectors(path: Path, dataset: Dataset) -> KnownVectors:
    """Read the vectors of a data set; what they do not cover is noted, as it will be computed."""
    arrays, problems = _arrays(path), ProblemLog()
    documents = _by_id(arrays["doc_ids"], arrays["doc_vectors"], path, problems)
    queries = _by_id(arrays["query_ids"], arrays["query_vectors"], path, problems)
    used = {document.doc_id for document in dataset.documents}
    for document in dataset.documents:
        if document.doc_id not in documents and passage(document):
            problems.add(ProblemKind.COMPUTED_DOCUMENT_VECTOR, path, f"no vector of document {document.doc_id!r}")
    for query in dataset.queries:
        if query.query_id not in queries:
            problems.add(ProblemKind.COMPUTED_QUERY_VECTOR, path, f"no vector of query {query.query_id!r}")
    for doc_id in documents.keys() - used if used else ():
        problems.add(ProblemKind.UNUSED_VECTOR, path, f"there is no document {doc_id!r}")
    return KnownVectors(documents=documents, queries=queries, origin=path.name, problems=problems.report())


def given_vectors(dataset: Dataset, place: Path | None, base: BaseEmbedding) -> KnownVectors:
    """Read the given vectors of a data set, if any, and see that they are of the model that computes the rest."""
    path = None if place is None else vectors_file(place, dataset.name)
    if path is None or (dataset.kind is DatasetKind.QUESTIONS and not path.exists()):
        return KnownVectors()
    known = load_vectors(path, dataset)
    other = _other_width(dataset, known, base.get_query_embedding)
    if other is not None:
        raise EvaluationError(
            f"the vectors in {path} ({len(next(iter(known.queries.values())))} dimensions) do not come from the "
            f"embedding model {embedding_name(base)} ({other} dimensions), which has to embed what they do not cover; "
            "set EMBEDDING_MODEL to theirs, or leave --vectors out"
        )
    return known


def _other_width(dataset: Dataset, known: KnownVectors, embed: Callable[[str], Any]) -> int | None:
    """Embed one question whose vector is known; return the width of what the model gives if it is another model."""
    asked = next((query for query in dataset.queries if query.query_id in known.queries), None)
    if asked is None:
        return None
    given, computed = known.queries[asked.query_id], np.asarray(embed(asked.text), dtype=np.float32)
    near = given.shape == computed.shape and float(given @ computed) >= SAME_MODEL * float(np.linalg.norm(computed))
    return None if near else len(computed)


def passage_vectors(dataset: Dataset, known: KnownVectors) -> dict[bytes, Vector]:
    """Return vectors by the hash of the text that was embedded."""
    documents = [one for one in dataset.documents if one.doc_id in known.documents]
    return {text_hash(passage(document)): known.documents[document.doc_id] for document in documents}


def with_vectors(
    queries: Sequence[LabelledQuery],
    known: KnownVectors,
    embed: Callable[[str], Any],
    *,
    about: str,
    timer: Callable[[], float],
    watcher: Watcher,
) -> Asked:
    """Take the vectors of questions that are known, and embed the others."""
    watcher.begin(f"questions of {about}", len(queries))
    vectors: dict[str, Vector] = {}
    spent = []
    for query in queries:
        if query.query_id in known.queries:
            vectors[query.query_id] = known.queries[query.query_id]
        else:
            start = timer()
            raw = np.asarray(embed(query.text), dtype=np.float32)
            spent.append((timer() - start) * 1000)
            norm = float(np.linalg.norm(raw))
            if not np.isfinite(norm) or norm == 0:
                raise EvaluationError(f"the embedding model gave no usable vector for question {query.query_id!r}")
            vectors[query.query_id] = raw / norm
        watcher.advance(1)
    return Asked(tuple(queries), vectors, tuple(spent))


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as packed:
            missing = [name for name in ARRAYS if name not in packed.files]
            arrays = {name: packed[name] for name in ARRAYS if name not in missing}
    except FileNotFoundError as err:
        raise EvaluationError(f"{path} is missing; it holds the vectors of that data set") from err
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as err:
        raise EvaluationError(f"{path} cannot be read as .npz without pickled objects: {type(err).__name__}") from err
    if missing:
        raise EvaluationError(f"{path} lacks the arrays {', '.join(missing)}; it needs {', '.join(ARRAYS)}")
    for ids, vectors in (ARRAYS[:2], ARRAYS[2:]):
        if arrays[ids].ndim != 1 or arrays[vectors].ndim != 2 or len(arrays[ids]) != len(arrays[vectors]):
            shapes = f"{arrays[ids].shape} and {arrays[vectors].shape}"
            raise EvaluationError(f"{path}: {ids} and {vectors} must be (n,) and (n, dimension), got {shapes}")
        if arrays[vectors].dtype.kind not in "fiu":
            raise EvaluationError(f"{path}: {vectors} must hold numbers, got {arrays[vectors].dtype}")
    wide, long = arrays["doc_vectors"].shape[1], arrays["query_vectors"].shape[1]
    if wide != long and len(arrays["doc_vectors"]):
        raise EvaluationError(f"{path}: documents have {wide} dimensions, questions {long}; take one embedding model")
    return arrays


def _by_id(ids: npt.NDArray[Any], vectors: npt.NDArray[Any], path: Path, problems: ProblemLog) -> dict[str, Vector]:
    """Unit vectors by id; what is not finite or has no length is left out."""
    wide = vectors.astype(np.float32)
    norms = np.linalg.norm(wide.astype(np.float64), axis=1)
    usable = np.isfinite(norms) & (norms > _MIN_NORM)
    found: dict[str, Vector] = {}
    for at, raw in enumerate(ids.tolist()):
        name = raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else str(raw)
        if not usable[at]:
            problems.add(ProblemKind.UNUSABLE_VECTOR, path, f"the vector of {name!r} is zero or not finite")
        elif name in found:
            problems.add(ProblemKind.DUPLICATE_VECTOR, path, f"{name!r} has a vector already")
        else:
            found[name] = (wide[at] / norms[at]).astype(np.float32)
    return found
