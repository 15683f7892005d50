"""Questions made of a corpus itself, for want of real ones: titles, and sentences left out of their own document.

They are no real questions: made of the very words of a document, they flatter search by words. Whatever is measured
with them is marked as pseudo.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.beir import CORPUS
from agentic_retriever.evaluation.datasets import Dataset, DatasetKind, LabelledQuery
from agentic_retriever.evaluation.problems import ProblemKind, ProblemLog, ProblemReport
from agentic_retriever.ingestion import SourceDocument, discover, read_source
from agentic_retriever.text import Tokenizer, detect_language, split_sentences
from agentic_retriever.text.centrality import central_sentences

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentic_retriever.indices import RoutedIndex

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

    Args:
        name: Name of the data set.
        path: Where the documents come from.
        documents: The corpus, unique by id.
        most: Most questions.
        seed: Draws the documents.
        problems: What was wrong with the corpus.

    Returns:
        The changed documents and the questions, marked as pseudo.

    Raises:
        EvaluationError: If no document gives a question.
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
    """Read every document of a file or folder that can be indexed; of a BEIR folder, its ``corpus.jsonl``.

    Returns:
        The documents, unique by id, and what could not be read.

    Raises:
        EvaluationError: If there is none.
        SourceError: If the folder cannot be read.
    """
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


def documents_of(index: RoutedIndex) -> list[SourceDocument]:
    """Return the documents of an index as their source texts, without metadata.

    Raises:
        EvaluationError: If the index knows the text of none.
    """
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
