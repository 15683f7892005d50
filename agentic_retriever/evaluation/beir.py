"""BEIR folders: one index with questions of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import Dataset, DatasetKind, LabelledQuery, empty
from agentic_retriever.evaluation.problems import ProblemKind, ProblemLog
from agentic_retriever.evaluation.records import read_judgments, read_records, text_id
from agentic_retriever.ingestion import SourceDocument, read_source

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

CORPUS, QUERIES, QRELS, ABOUT = "corpus.jsonl", "queries.jsonl", "qrels", "dataset.json"


def load_beir(folder: Path, *, with_corpus: bool = True, split: str | None = None) -> Dataset:
    """Read a BEIR folder; see ``load_dataset``.

    Raises:
        EvaluationError: If a file is missing or unreadable, or no document or no judged question is left.
    """
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
