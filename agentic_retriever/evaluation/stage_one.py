"""Choosing the index, measured on the indexes and questions of one benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.evaluation.bench import RoutingBenchmark, bench_routing
from agentic_retriever.evaluation.contenders import ASKS_A_MODEL, Field, stage_one_field
from agentic_retriever.evaluation.descriptions import Description
from agentic_retriever.evaluation.material import RoutingMaterial
from agentic_retriever.evaluation.problems import ProblemReport
from agentic_retriever.evaluation.routing import RoutedQuery
from agentic_retriever.router import AgenticRouter

if TYPE_CHECKING:
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.evaluation.targets import Bench, Target
    from agentic_retriever.evaluation.vectors import Vector
    from agentic_retriever.indices import IndexProfile

_LATER: Final = "it asks a model; agentic-retriever bench-routing measures it"
_NO_MODEL: Final = {"llm": "none", "llm_cloud": "none", "llm_small": "none"}


class StageOne:
    """Gathers the profiles and questions of several indexes, and measures how well the right index is chosen."""

    def __init__(self) -> None:
        self._profiles: dict[str, IndexProfile] = {}
        self._passages: dict[str, Vector] = {}
        self._queries: dict[str, RoutedQuery] = {}
        self._pseudo: list[str] = []

    def add(self, target: Target) -> None:
        """Take what is needed of an index that is open.

        Raises:
            EmbeddingError: If its description could not be embedded.
            StoreError: If the index cannot be read.
        """
        profile = target.router.index(target.index).profile()
        self._profiles[profile.name] = profile
        if profile.description:
            matrix = target.router.resources.embedding().embed_sentences([profile.description])
            self._passages[profile.name] = np.asarray(matrix, dtype=np.float32)[0]
        if target.pseudo:
            self._pseudo.append(target.name)
        for query in target.queries:
            query_id = f"{target.name}/{query.query_id}"
            self._queries[query_id] = RoutedQuery(
                query_id=query_id,
                text=query.text,
                dataset=target.name,
                vector=target.vectors.get(query.query_id),
                index=profile.name,
            )

    def measured(self, bench: Bench) -> RoutingBenchmark | None:
        """Measure every way to choose the index that asks no model.

        Args:
            bench: What all targets share.

        Returns:
            The measures; ``None`` with fewer than two indexes, or with vectors of different models.
        """
        widths = {profile.sample.shape[1] for profile in self._profiles.values() if len(profile.sample)}
        if len(self._profiles) < 2 or len(widths) > 1:
            return None
        material = self._material(bench.options.seed)
        with AgenticRouter(_modest(bench.config, bench), embedding=bench.embedding()) as router:
            found = stage_one_field(router, material)
            left_out = {name: _LATER if name in ASKS_A_MODEL else why for name, why in found.left_out.items()}
            field = Field(contenders=found.contenders, left_out=left_out)
            return bench_routing(material, field, {}, timer=bench.timer, watcher=bench.watcher)

    def _material(self, seed: int) -> RoutingMaterial:
        described = {name: Description(profile.description, "index") for name, profile in self._profiles.items()}
        pseudo = ", ".join(self._pseudo)
        return RoutingMaterial(
            profiles=self._profiles,
            cards={},
            queries=tuple(self._queries.values()),
            unlabelled=(),
            descriptions=described,
            passages=self._passages if len(self._passages) == len(self._profiles) else {},
            datasets=(),
            problems=ProblemReport(),
            notes=(f"the questions of {pseudo} are pseudo-queries; their own words tell the index",) if pseudo else (),
            seed=seed,
        )


def _modest(config: RouterConfig, bench: Bench) -> RouterConfig:
    """Return the settings for a router that holds no index and asks no model."""
    return config.with_changes(data_dir=bench.folder / "routing", query_log="none", cache_max_entries=0, **_NO_MODEL)
