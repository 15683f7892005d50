"""LlamaIndex's own retrievers over the same nodes and the same vectors, so that they stand in the same table."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever, RouterRetriever, VectorIndexRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import QueryBundle
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import RetrieverTool

from agentic_retriever.errors import ConfigError, EvaluationError
from agentic_retriever.evaluation.measures import BENCH_HINT
from agentic_retriever.evaluation.peers import GivenEmbedding
from agentic_retriever.evaluation.runner import Found
from agentic_retriever.retrievers import AdapterSettings, build_adapter, cards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import BaseNode

    from agentic_retriever.evaluation.datasets import LabelledQuery
    from agentic_retriever.evaluation.vectors import Vector
    from agentic_retriever.indices import Index
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.schema import Strategy

VECTOR: Final = "llamaindex_vector"
BM25: Final = "llamaindex_bm25"
FUSION_RRF: Final = "llamaindex_fusion_rrf"
FUSION_RELATIVE: Final = "llamaindex_fusion_relative_score"
ROUTER: Final = "llamaindex_router"

NOTES: Final = {
    VECTOR: "VectorIndexRetriever over the in-memory store that VectorStoreIndex makes",
    BM25: "BM25Retriever with its defaults: English stemmer and stop words",
    FUSION_RRF: "QueryFusionRetriever, reciprocal_rerank, over the two above, no generated queries",
    FUSION_RELATIVE: "QueryFusionRetriever, relative_score, over the two above, no generated queries",
    ROUTER: "RouterRetriever with EmbeddingSingleSelector over one tool per strategy of ours, with our descriptions; "
    "embedding these anew for each question, as it does, is not in its latency",
}


class PeerContestant:
    """One retriever of LlamaIndex, asked with the vector of the question at hand.

    Args:
        name: Name of its row.
        make: Makes the retriever, when the first question comes: by then the index is not closed any more.
        embedding: What it embeds with.
        chosen: Tells the strategy that was chosen for the question asked last, where one was.
    """

    peer = True

    def __init__(
        self,
        name: str,
        make: Callable[[], BaseRetriever],
        embedding: GivenEmbedding,
        chosen: Callable[[], str] | None = None,
    ) -> None:
        self.name = name
        self.note = NOTES[name]
        self._make = make
        self._retriever: BaseRetriever | None = None
        self._embedding = embedding
        self._chosen = chosen

    def ask(self, query: LabelledQuery, vector: Vector) -> Found:
        """Search; see ``Contestant``."""
        if self._retriever is None:
            self._retriever = self._make()
        self._embedding.ask(vector)
        nodes = self._retriever.retrieve(QueryBundle(query.text, embedding=vector.tolist()))
        return Found(nodes=nodes, facts={} if self._chosen is None else {"strategy": self._chosen()})

    def cool(self) -> bool:
        """Return ``False``: it holds everything in memory."""
        return False


def peer_contestants(
    router: AgenticRouter, index_name: str, strategies: Sequence[Strategy], *, depth: int
) -> list[PeerContestant]:
    """Make the peers over the nodes and vectors of an index.

    Args:
        router: Holds the index; its embedding model embeds the descriptions for the selector.
        index_name: Name of the index.
        strategies: Those that LlamaIndex's router chooses among; without any it does not take part.
        depth: Nodes to fetch.

    Returns:
        ``VectorIndexRetriever``, ``BM25Retriever``, ``QueryFusionRetriever`` in two modes, ``RouterRetriever``.

    Raises:
        ConfigError: If ``llama-index-retrievers-bm25`` is not installed.
        EvaluationError: If the index lacks the vector of a node.
        EmbeddingError: If the descriptions could not be embedded.
        StoreError: If the index cannot be read.
    """
    index = router.stored_index(index_name)
    nodes, embedding, model = _nodes(index), GivenEmbedding(), MockLLM()
    vector = VectorIndexRetriever(
        VectorStoreIndex(nodes, embed_model=embedding), similarity_top_k=depth, embed_model=embedding
    )
    bm25 = _bm25(nodes, depth)

    def fusion(mode: FUSION_MODES) -> QueryFusionRetriever:
        return QueryFusionRetriever(
            [vector, bm25], llm=model, mode=mode, similarity_top_k=depth, num_queries=1, use_async=False
        )

    selector = _RememberingSelector(embedding)
    peers = [
        PeerContestant(VECTOR, lambda: vector, embedding),
        PeerContestant(BM25, lambda: bm25, embedding),
        PeerContestant(FUSION_RRF, lambda: fusion(FUSION_MODES.RECIPROCAL_RANK), embedding),
        PeerContestant(FUSION_RELATIVE, lambda: fusion(FUSION_MODES.RELATIVE_SCORE), embedding),
    ]
    if strategies:
        peers.append(
            PeerContestant(
                ROUTER,
                lambda: RouterRetriever(selector, _tools(router, index_name, strategies, embedding, depth), llm=model),
                embedding,
                lambda: selector.last,
            )
        )
    return peers


class _RememberingSelector(EmbeddingSingleSelector):
    """LlamaIndex's selector; it keeps the name of what it chose last."""

    last: str = ""

    def _select(self, choices: Any, query: Any) -> Any:  # noqa: ANN401 - LlamaIndex's signature
        result = super()._select(choices, query)
        self.last = str(choices[result.ind].name)
        return result


def _nodes(index: Index) -> list[BaseNode]:
    """Copy the nodes of an index with their vectors, in the order of their ids."""
    nodes = sorted(index.nodes(), key=lambda node: node.node_id)
    ids, matrix = index.vector_store.vectors([node.node_id for node in nodes])
    by_id = dict(zip(ids, matrix, strict=True))
    missing = [node.node_id for node in nodes if node.node_id not in by_id]
    if missing:
        raise EvaluationError(f"index {index.name!r} has no vector of {len(missing)} nodes, first {missing[0]!r}")
    return [node.model_copy(update={"embedding": np.asarray(by_id[node.node_id]).tolist()}) for node in nodes]


def _bm25(nodes: list[BaseNode], depth: int) -> BaseRetriever:
    try:
        library = importlib.import_module("llama_index.retrievers.bm25")
    except ImportError as err:
        raise ConfigError(f"the peer BM25Retriever {BENCH_HINT}") from err
    made: BaseRetriever = library.BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=min(depth, len(nodes)))
    return made


def _tools(
    router: AgenticRouter, index_name: str, strategies: Sequence[Strategy], embedding: GivenEmbedding, depth: int
) -> list[RetrieverTool]:
    """One tool per strategy; the selector knows the vectors of their descriptions."""
    resources, index = router.resources, router.index(index_name)
    config = router.config.with_changes(top_k=depth, max_top_k=max(depth, router.config.max_top_k))
    settings = AdapterSettings.from_config(config, resources.workers(), model=resources.model)
    served = [card for card in cards(index) if card.strategy in strategies]
    described = resources.embedding().embed_sentences([card.description for card in served])
    embedding.learn({card.description: row for card, row in zip(served, described, strict=True)})
    return [
        RetrieverTool.from_defaults(
            build_adapter(card.strategy, index, settings), description=card.description, name=card.strategy.value
        )
        for card in served
    ]
