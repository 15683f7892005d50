"""Between retrieval and the answer: how many nodes to fetch, and what is done with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentic_retriever.retrievers.postprocess import (
    EXPANDED_KEY,
    LLMReranker,
    NodePostprocessors,
    PostprocessSettings,
    PostprocessTools,
    make_reranker,
    postprocess,
    section_neighbours,
    store_vectors,
)
from agentic_retriever.router.spans import REFINE, traced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import BaseNode, NodeWithScore

    from agentic_retriever.llm import ModelClient
    from agentic_retriever.retrievers.postprocess.expand import Neighbours
    from agentic_retriever.router.questions import Question
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.router.timing import QueryClock
    from agentic_retriever.schema import Degradation


class Refiner:
    """Boosts, reranks, diversifies, cuts and expands what was retrieved, as the settings ask; by default it cuts only.

    Args:
        resources: Settings and indexes.
        client: The model for the reranker ``llm``.
        postprocessors: LlamaIndex node postprocessors, run last.

    Raises:
        ConfigError: If the settings name a reranker that cannot be made, or a postprocessor is none.
    """

    def __init__(
        self, resources: Resources, client: ModelClient | None, postprocessors: Sequence[BaseNodePostprocessor] = ()
    ) -> None:
        self._resources = resources
        self._settings = PostprocessSettings.from_config(resources.config)
        self._reranker = make_reranker(resources.config, client)
        self._asks_model = resources.config.reranker == "llm"
        self._postprocessors = NodePostprocessors(postprocessors)

    @property
    def reranker(self) -> str:
        """The reranker as the settings name it; ``none`` for none."""
        return self._resources.config.reranker

    def kept(self, question: Question, complexity_score: float) -> int:
        """Return how many nodes the answer gets; a number that the caller gave is never changed."""
        if question.top_k_given:
            return question.top_k
        return self._settings.final_top_k(question.top_k, complexity_score)

    def fetched(self, kept: int) -> int:
        """Return how many nodes to retrieve so that so many can be kept."""
        return self._settings.candidates(kept, reranks=self._reranker is not None)

    @traced(REFINE)
    def run(
        self,
        question: Question,
        nodes: Sequence[NodeWithScore],
        origin: dict[str, str],
        kept: int,
        clock: QueryClock,
        model: ModelClient | None = None,
    ) -> tuple[list[NodeWithScore], tuple[Degradation, ...]]:
        """Refine the nodes; ``origin`` learns the index of those that are added.

        Args:
            question: The question.
            nodes: As retrieved, best first.
            origin: Name of the index by node id.
            kept: How many to keep.
            clock: The time of the query.
            model: The model for the reranker ``llm``, its calls counted for this query.

        Returns:
            The nodes in order, and the steps that failed.
        """
        readers: dict[str, Neighbours] = {}

        def neighbours(node: BaseNode) -> Sequence[BaseNode]:
            name = origin[node.node_id]
            if name not in readers:
                index, width = self._resources.index(name), self._settings.neighbours
                readers[name] = section_neighbours(index, width=width, filters=question.filters)
            return readers[name](node)

        with clock.step("rerank"):
            refined, lost = postprocess(
                question.query,
                nodes,
                self._settings,
                PostprocessTools(
                    reranker=LLMReranker(model) if self._asks_model and model is not None else self._reranker,
                    vectors=lambda node_ids: self._vectors(node_ids, origin),
                    neighbours=neighbours,
                ),
                top_k=kept,
                timeout_s=clock.left_s("refining what was found"),
            )
            if self._postprocessors:
                # Half of the time at most, so that an answer can still follow.
                refined, failed = self._postprocessors.run(
                    question.query,
                    refined,
                    filters=question.filters,
                    timeout_s=clock.left_s("postprocessing what was found") / 2,
                )
                lost = (*lost, *failed)
        for entry in refined:
            hit = entry.node.metadata.get(EXPANDED_KEY)
            if hit in origin:
                origin.setdefault(entry.node.node_id, origin[hit])
        return refined, lost

    def _vectors(self, node_ids: Sequence[str], origin: Mapping[str, str]) -> Mapping[str, npt.ArrayLike]:
        found: dict[str, npt.ArrayLike] = {}
        for name in dict.fromkeys(origin[node_id] for node_id in node_ids if node_id in origin):
            mine = [node_id for node_id in node_ids if origin.get(node_id) == name]
            index = self._resources.index(name)
            if len(mine) == len(node_ids) or self._resources.compares(index):  # else they are of different models
                found.update(store_vectors(index)(mine))
        return found
