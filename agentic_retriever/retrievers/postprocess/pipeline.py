"""What happens between retrieval and the answer: boost, rerank, diversify, cut, expand; all off by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentic_retriever.errors import AgenticRetrieverError, ConfigError
from agentic_retriever.retrievers.base import fetch_nodes
from agentic_retriever.retrievers.postprocess.adaptive import adaptive_top_k, stop_at_fall
from agentic_retriever.retrievers.postprocess.boost import Boost, boost, parse_boosts
from agentic_retriever.retrievers.postprocess.expand import Neighbours, expand
from agentic_retriever.retrievers.postprocess.mmr import mmr
from agentic_retriever.retrievers.postprocess.rerank_llm import LLMReranker
from agentic_retriever.retrievers.postprocess.rerank_models import CohereReranker, CrossEncoderReranker
from agentic_retriever.retrievers.postprocess.scores import in_order
from agentic_retriever.retrievers.sides import guarded
from agentic_retriever.schema import Degradation

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.llm import ModelClient
    from agentic_retriever.retrievers.postprocess.rerank import Reranker
    from agentic_retriever.retrievers.searchable import SearchableIndex

Vectors = Callable[["Sequence[str]"], Mapping[str, "npt.ArrayLike"]]
"""Gives the vectors of nodes by id, as far as they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostprocessSettings:
    """What is done with retrieved nodes; the defaults change nothing.

    Attributes:
        boosts: Keywords that lift nodes.
        rerank_candidates: How many nodes a reranker looks at, and MMR chooses from.
        rerank_timeout_s: Most seconds for reranking.
        mmr_trade_off: Lambda of MMR in [0, 1]; 1 for relevance alone.
        adaptive: Whether the number of nodes follows the complexity of the question.
        fall: Stop at the first gap larger than this share of the whole range of scores, in [0, 1]; 0 never stops.
        neighbours: Chunks to add on each side of a hit.
        max_top_k: Never more nodes than this.

    Raises:
        ConfigError: If a value is out of range.
    """

    boosts: tuple[Boost, ...] = ()
    rerank_candidates: int = 20
    rerank_timeout_s: float = 20.0
    mmr_trade_off: float = 1.0
    adaptive: bool = False
    fall: float = 0.0
    neighbours: int = 0
    max_top_k: int = 10_000

    def __post_init__(self) -> None:
        if not (0 <= self.mmr_trade_off <= 1 and 0 <= self.fall <= 1):
            raise ConfigError(f"mmr_trade_off and fall must be 0 to 1, got {self.mmr_trade_off!r} and {self.fall!r}")
        if self.rerank_candidates < 1 or self.neighbours < 0 or not self.rerank_timeout_s > 0:
            raise ConfigError("rerank_candidates must be 1 or more, neighbours 0 or more, rerank_timeout_s above 0")

    @classmethod
    def from_config(cls, config: RouterConfig) -> PostprocessSettings:
        """Take the settings from a router's configuration.

        Raises:
            ConfigError: If ``boost_keywords`` cannot be read.
        """
        return cls(
            boosts=parse_boosts(config.boost_keywords),
            rerank_candidates=config.rerank_candidates,
            rerank_timeout_s=config.rerank_timeout_s,
            mmr_trade_off=config.mmr_trade_off,
            adaptive=config.adaptive_top_k,
            fall=config.score_fall,
            neighbours=config.expand_neighbours,
            max_top_k=config.max_top_k,
        )

    def final_top_k(self, top_k: int, complexity_score: float) -> int:
        """Return how many nodes to keep for a question of some complexity in [0, 1]."""
        return adaptive_top_k(top_k, complexity_score, maximum=self.max_top_k) if self.adaptive else top_k

    def candidates(self, top_k: int, *, reranks: bool) -> int:
        """Return how many nodes to retrieve so that ``top_k`` can be kept: more when there is something to choose.

        Args:
            top_k: How many will be kept, as from :meth:`final_top_k`.
            reranks: Whether there is a reranker.
        """
        chooses = reranks or bool(self.boosts) or self.mmr_trade_off < 1
        return min(max(top_k, self.rerank_candidates), max(top_k, self.max_top_k)) if chooses else top_k


@dataclass(frozen=True, slots=True, kw_only=True)
class PostprocessTools:
    """What the steps work with.

    Attributes:
        reranker: Orders anew; ``None`` for none.
        vectors: Gives vectors for MMR, as :func:`store_vectors` does.
        neighbours: Gives the chunks around a hit, as ``section_neighbours`` does.
    """

    reranker: Reranker | None = None
    vectors: Vectors | None = None
    neighbours: Neighbours | None = None


def postprocess(
    query: str,
    nodes: Sequence[NodeWithScore],
    settings: PostprocessSettings,
    tools: PostprocessTools,
    *,
    top_k: int,
    timeout_s: float | None = None,
) -> tuple[list[NodeWithScore], tuple[Degradation, ...]]:
    """Boost, rerank, diversify, cut and expand, as far as the settings ask for it.

    A step that fails is left out and named; the question is answered all the same.

    Args:
        query: The question.
        nodes: As they were retrieved, best first; neither the list nor a node is changed.
        settings: What to do.
        tools: What to do it with.
        top_k: How many hits to keep.
        timeout_s: Seconds left for the question, or ``None``; reranking gets half of them at most.

    Returns:
        A new list by falling score: at most ``top_k`` hits, then the chunks added around them; and the steps that
        failed.
    """
    degraded: list[Degradation] = []
    kept = boost(query, nodes, settings.boosts)
    if tools.reranker is not None:
        seen = kept[: max(settings.rerank_candidates, top_k)]
        limit = settings.rerank_timeout_s if timeout_s is None else min(settings.rerank_timeout_s, timeout_s / 2)
        kept = _attempt("rerank", partial(tools.reranker.rerank, query, seen, len(seen), limit), kept, degraded)
    if settings.mmr_trade_off < 1 and tools.vectors is not None:
        kept = _attempt("mmr", partial(_diverse, kept, tools.vectors, settings.mmr_trade_off, top_k), kept, degraded)
    kept = stop_at_fall(kept[:top_k], settings.fall)
    if settings.neighbours and tools.neighbours is not None:
        limit_added = 2 * settings.neighbours * len(kept)
        kept = _attempt("expand", partial(expand, kept, tools.neighbours, limit=limit_added), kept, degraded)
    return kept, tuple(degraded)


def make_reranker(config: RouterConfig, client: ModelClient | None) -> Reranker | None:
    """Return the reranker that the settings name, or ``None`` for none; it connects and loads with its first call.

    Args:
        config: The settings.
        client: The model for ``llm``.

    Raises:
        ConfigError: If ``llm`` is named and there is no model, or ``cohere`` and there is no key.
    """
    if config.reranker == "llm":
        if client is None:
            raise ConfigError("reranker llm needs a model; set llm to ollama:MODEL or openrouter:MODEL")
        return LLMReranker(client)
    if config.reranker == "cross_encoder":
        return CrossEncoderReranker(config.cross_encoder_model, timeout_s=config.rerank_timeout_s)
    if config.reranker == "cohere":
        return CohereReranker(config.cohere_api_key, config.cohere_model, timeout_s=config.rerank_timeout_s)
    return None


@runtime_checkable
class _HasVectors(Protocol):
    def vectors(self, node_ids: Sequence[str]) -> tuple[list[str], npt.NDArray[Any]]: ...


def store_vectors(index: SearchableIndex) -> Vectors:
    """Return what reads the vectors of an index's nodes from its store.

    Args:
        index: The index.

    Returns:
        A function that raises ``StoreError`` if the store cannot be read; stores that do not give vectors away give
        none.
    """

    def read(node_ids: Sequence[str]) -> Mapping[str, npt.ArrayLike]:
        store = index.vector_store
        if isinstance(store, _HasVectors):
            found, matrix = guarded(f"the store of index {index.name}", lambda: store.vectors(node_ids))
            return dict(zip(found, matrix, strict=True))
        nodes = fetch_nodes(index, node_ids)
        return {node_id: node.embedding for node_id, node in nodes.items() if node.embedding is not None}

    return read


def _diverse(nodes: list[NodeWithScore], vectors: Vectors, trade_off: float, top_k: int) -> list[NodeWithScore]:
    """Choose diverse nodes, and put them back in the order of their scores, which readers take for their rank."""
    known = vectors([entry.node.node_id for entry in nodes])
    return in_order(mmr(nodes, known, top_k=top_k, trade_off=trade_off))


def _attempt(
    step: str, call: Callable[[], list[NodeWithScore]], kept: list[NodeWithScore], degraded: list[Degradation]
) -> list[NodeWithScore]:
    try:
        return call()
    except AgenticRetrieverError as err:
        degraded.append(Degradation(step=f"postprocess.{step}", reason=str(err), fallback="the order before it"))
        return kept
