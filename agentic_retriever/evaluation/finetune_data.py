"""LlamaIndex's ``EmbeddingQAFinetuneDataset``: a corpus, questions, and which documents answer them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import Dataset, DatasetKind, LabelledQuery, empty
from agentic_retriever.evaluation.problems import ProblemKind, ProblemLog
from agentic_retriever.evaluation.records import text_id
from agentic_retriever.ingestion import SourceDocument

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
    """Read the JSON file that ``EmbeddingQAFinetuneDataset.save_json`` wrote.

    Raises:
        EvaluationError: If it cannot be read, is something else, or nothing is left to ask.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise EvaluationError(f"cannot read {path}: {err.strerror or type(err).__name__}; check the path") from err
    except (ValueError, RecursionError) as err:
        raise EvaluationError(f"{path} is not valid JSON ({type(err).__name__}); check the file") from err
    parts = {name: data.get(name) for name in FIELDS} if isinstance(data, dict) else {}
    return _dataset(parts, path.stem, path)


def finetune_dataset(given: FinetuneDataset, name: str = "finetune") -> Dataset:
    """Take an ``EmbeddingQAFinetuneDataset`` as a data set.

    Args:
        given: The object.
        name: Name of the data set and of its index.

    Raises:
        EvaluationError: If nothing is left to ask.
    """
    return _dataset({field: getattr(given, field) for field in FIELDS}, name, _MEMORY)


def _dataset(parts: Mapping[str, Any], name: str, path: Path) -> Dataset:
    wrong = [field for field in FIELDS if not isinstance(parts.get(field), Mapping)]
    if wrong:
        raise EvaluationError(
            f"{path} is no EmbeddingQAFinetuneDataset: {', '.join(wrong)} must be objects; it needs {', '.join(FIELDS)}"
        )
    problems = ProblemLog()
    documents = _documents(parts["corpus"], path, problems)
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


def _documents(corpus: Mapping[str, Any], path: Path, problems: ProblemLog) -> list[SourceDocument]:
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
