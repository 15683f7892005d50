"""Other people's ways to choose an index, behind the same protocol as ours, so that all run side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import ToolMetadata

from agentic_retriever.errors import EvaluationError
from agentic_retriever.schema import NO_LIMITS, Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.evaluation.vectors import Vector
    from agentic_retriever.indices import IndexProfile
    from agentic_retriever.schema import Allowance

UTTERANCES: Final = 5
"""How many of the nearest utterances count; semantic-router's default ``top_k``."""


class GivenEmbedding(BaseEmbedding):
    """An embedding model that knows its vectors: of the descriptions by text, and of the question asked now.

    Not for several threads.
    """

    model_name: str = "given"
    _texts: dict[str, list[float]] = PrivateAttr(default_factory=dict)
    _query: list[float] = PrivateAttr(default_factory=list)

    def learn(self, texts: Mapping[str, Vector]) -> None:
        """Remember the vectors of texts."""
        self._texts = {text: vector.tolist() for text, vector in texts.items()}

    def ask(self, query_vector: Vector) -> None:
        """Take a vector for the question that comes next, whatever its words."""
        self._query = query_vector.tolist()

    def _get_query_embedding(self, query: str) -> list[float]:  # noqa: ARG002 - of the base
        return self._query

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._texts[text]


class LlamaIndexEmbeddingSelector:
    """LlamaIndex's ``EmbeddingSingleSelector``, the class itself, fed with vectors that are known already.

    It embeds the question and every description, and takes the one of the greatest cosine. Its scores are no
    probabilities.

    Args:
        description_vectors: Unit vector of each description as a passage, by the name of the index.
    """

    mode = "llamaindex_embedding_selector"

    def __init__(self, description_vectors: Mapping[str, Vector]) -> None:
        self._known = frozenset(description_vectors)
        self._embedding = GivenEmbedding()
        # The selector sees texts only; the name of an index is the text under which its vector is known.
        self._embedding.learn(description_vectors)
        self._selector = EmbeddingSingleSelector(self._embedding)

    def classify(
        self,
        query: str,
        profiles: Sequence[IndexProfile],
        *,
        query_vector: Vector | None,
        allowance: Allowance = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        """Pick an index; see ``IndexClassifier``.

        Raises:
            EvaluationError: If the question has no vector, or an index no description.
        """
        missing = [profile.name for profile in profiles if profile.name not in self._known]
        if query_vector is None or missing:
            what = f"the descriptions of {', '.join(missing)} have" if missing else "the question has"
            raise EvaluationError(f"{what} no vector, and {self.mode} goes by vectors alone")
        self._embedding.ask(query_vector)
        choices = [ToolMetadata(description=profile.name, name=profile.name) for profile in profiles]
        result = self._selector.select(choices, query)
        return _chosen(profiles[result.ind].name, {}, result.reason, self.mode)


class NearestUtteranceRouter:
    """What semantic-router's ``SemanticRouter`` does: the nearest utterances of all routes vote for their route.

    Its logic, written anew: sampled nodes serve as the utterances of an index, the ``top_k`` nearest of all are
    grouped by index, and the greatest mean (its default) or sum of cosines wins. It knows a threshold per route; none
    is set here, so it never abstains. Its scores are no probabilities.

    Args:
        aggregation: ``"mean"`` or ``"sum"``.
        top_k: How many utterances count, from 1.

    Raises:
        EvaluationError: If an argument is none of these.
    """

    def __init__(self, aggregation: str = "mean", top_k: int = UTTERANCES) -> None:
        if aggregation not in {"mean", "sum"} or top_k < 1:
            raise EvaluationError(f"aggregation must be mean or sum and top_k from 1, got {aggregation!r} and {top_k}")
        self.mode = f"nearest_utterance_{aggregation}"
        self._mean = aggregation == "mean"
        self._top_k = top_k
        self._stacked: tuple[tuple[int, ...], np.ndarray[tuple[int, int], np.dtype[np.float32]], list[str]] | None = (
            None
        )

    def classify(
        self,
        query: str,  # noqa: ARG002 - of the protocol
        profiles: Sequence[IndexProfile],
        *,
        query_vector: Vector | None,
        allowance: Allowance = NO_LIMITS,  # noqa: ARG002 - of the protocol
    ) -> Selection:
        """Pick an index; see ``IndexClassifier``.

        Raises:
            EvaluationError: If the question has no vector, or no index a sample.
        """
        rows, names = self._utterances(profiles)
        if query_vector is None or not names:
            raise EvaluationError(
                f"the question has no vector or no index a sample, and {self.mode} goes by them alone"
            )
        cosines = rows @ query_vector
        nearest = np.argsort(-cosines, kind="stable")[: self._top_k]
        votes: dict[str, list[float]] = {}
        for at in nearest:
            votes.setdefault(names[at], []).append(float(cosines[at]))
        scores = {name: sum(found) / (len(found) if self._mean else 1) for name, found in votes.items()}
        best = max(scores, key=lambda name: scores[name])
        return _chosen(best, scores, f"nearest {self._top_k} utterances", self.mode)

    def _utterances(
        self, profiles: Sequence[IndexProfile]
    ) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float32]], list[str]]:
        """Return the samples of all profiles below each other, and the index of each row; made once."""
        key = tuple(id(profile) for profile in profiles)
        if self._stacked is None or self._stacked[0] != key:
            filled = [profile for profile in profiles if len(profile.sample)]
            rows = np.concatenate([profile.sample for profile in filled]) if filled else np.zeros((0, 0), np.float32)
            self._stacked = (key, rows, [profile.name for profile in filled for _ in range(len(profile.sample))])
        return self._stacked[1], self._stacked[2]


def _chosen(name: str, scores: Mapping[str, float], reason: str, mode: str) -> Selection:
    ranked = dict(sorted(scores.items(), key=lambda item: -item[1])) or {name: 1.0}
    return Selection(name=name, confidence=1.0, scores=ranked, margin=0.0, reason=reason, mode=mode)
