"""The summaries of an index: one node a document, with its most central sentences or what a model wrote."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.indices.derived import BATCH_NODES, Derivation, Derived, DerivedCollection, ViewState
from agentic_retriever.indices.stored_nodes import SUMMARIES, StoredNodes
from agentic_retriever.ingestion.chunking import count_tokens
from agentic_retriever.llm import without_thoughts
from agentic_retriever.llm.prompts import summary_prompt
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.stores.points import KnownPoints, found_facts
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.text.centrality import central_sentences

logger = logging.getLogger(__name__)

SUMMARIES_FORMAT: Final = 1
"""Raised whenever the same chunks would give another summary without a model than before."""

SUMMARY_TOKENS: Final = 512
"""Largest summary in tokens; a document that is no longer is its own summary."""

PROMPT_TOKENS: Final = 4_000
"""Most of a document that a model is given; of a longer one, its most central sentences."""

MAX_WRITTEN_CHARS: Final = 4_000
MAX_FAILURES: Final = 3
"""After so many failures in a row the model is left alone for the rest of the run."""

SummaryWriter = Callable[[str], str]
"""Completes a prompt; what it raises must be an error of this package."""


@dataclass(frozen=True, slots=True)
class SummaryHit:
    """A document whose summary was found, and the cosine of that with the question, in [-1, 1]."""

    doc_id: str
    score: float


class SummaryView:
    """Summaries to search, and the chunks of each document. Safe to use from many threads."""

    def __init__(self, store: BasePydanticVectorStore, chunks: Mapping[str, Sequence[str]], summarised: int) -> None:
        self._store = store
        self._documents: KnownPoints[str] = KnownPoints(lambda summary: summary.ref_doc_id)
        self.chunks = chunks
        self.summarised = summarised

    @property
    def coverage(self) -> float:
        """Share of the documents that have a summary, in [0, 1]; 0 without documents."""
        return self.summarised / len(self.chunks) if self.chunks else 0.0

    @cached_property
    def most_chunks(self) -> int:
        """Largest number of chunks that a document has."""
        return max(map(len, self.chunks.values()), default=0)

    def search(self, vector: Sequence[float], top_k: int) -> list[SummaryHit]:
        """Find the documents whose summaries are nearest to a question."""
        query = VectorStoreQuery(query_embedding=list(vector), similarity_top_k=top_k)
        found = found_facts(self._store, query, self._documents)
        hits = [SummaryHit(doc_id, score) for doc_id, score in found if doc_id in self.chunks]
        return sorted(hits, key=lambda hit: (-hit.score, hit.doc_id))


def summary_collection(index: StoredNodes) -> DerivedCollection[SummaryView]:
    """Return the summaries of a stored index."""

    def view_of(store: NodeStore, state: ViewState) -> SummaryView:
        chunks = {doc_id: held.facts["chunks"] for doc_id, held in state.documents.items()}
        return SummaryView(store, chunks, sum(bool(held.node_ids) for held in state.documents.values()))

    return DerivedCollection(index, SUMMARIES, summary_derivation(), view_of, made_with=str(SUMMARIES_FORMAT))


def summary_node(doc_id: str, chunks: Sequence[TextNode], text: str) -> TextNode:
    """Make the node of a summary."""
    shared = dict(chunks[0].metadata)
    for chunk in chunks[1:]:
        shared = {key: value for key, value in shared.items() if key in chunk.metadata and chunk.metadata[key] == value}
    return TextNode(
        id_=f"{doc_id}/S",
        text=text,
        metadata=shared,
        excluded_embed_metadata_keys=[key for key in shared if key != "title"],
        metadata_template="{value}",
        text_template="{metadata_str}\n{content}",
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)},
    )


def central_summary(chunks: Sequence[TextNode], *, room: int = SUMMARY_TOKENS) -> str:
    """Return the most central sentences of a document, or all of it where that fits."""
    texts = [chunk.text for chunk in chunks]
    if len(texts) == 1 and count_tokens(texts[0]) <= room:
        return texts[0].strip()
    tokenizer = Tokenizer(detect_language("\n".join(texts)[:20_000]))
    return "\n".join(central_sentences(texts, tokenizer=tokenizer, room=room, measure=count_tokens))


def summary_derivation(write: SummaryWriter | None = None) -> Derivation:
    """Say how the summaries of an index are made."""
    author = None if write is None else _Author(write)

    def derive(doc_id: str, chunks: Sequence[TextNode]) -> Derived:
        written = author.summary(chunks) if author is not None and chunks else ""
        text = written or central_summary(chunks)
        nodes = [summary_node(doc_id, chunks, text)] if text else []
        return Derived(nodes, {"chunks": [chunk.node_id for chunk in chunks], "written": bool(written)})

    def lacks_written(facts: Mapping[str, Any]) -> bool:
        return not facts.get("written")

    if author is None:
        return Derivation(derive=derive)
    # A model takes seconds for each, so each is kept at once.
    return Derivation(derive=derive, is_outdated=lacks_written, batch_nodes=max(1, BATCH_NODES // 16))


class _Author:
    """Has summaries written, and gives up on a model that keeps failing."""

    def __init__(self, write: SummaryWriter) -> None:
        self._write = write
        self._failures = 0

    def summary(self, chunks: Sequence[TextNode]) -> str:
        """Return a written summary, or ``""``."""
        if self._failures >= MAX_FAILURES:
            return ""
        text = "\n\n".join(chunk.text for chunk in chunks)
        if count_tokens(text) > PROMPT_TOKENS:
            text = central_summary(chunks, room=PROMPT_TOKENS)
        # Nobody can write a text that holds its own hash, so the text cannot forge the frame around it.
        boundary = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        title = str(chunks[0].metadata.get("title", ""))
        try:
            written = without_thoughts(self._write(summary_prompt(title, text, boundary)))
        except AgenticRetrieverError as err:
            self._failures += 1
            logger.warning("a summary could not be written (%s); using central sentences", err)
            return ""
        self._failures = 0
        return written[:MAX_WRITTEN_CHARS]
