"""From data sets to what routing is measured on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.errors import AgenticRetrieverError, EvaluationError, UnknownIndexError, unknown_name
from agentic_retriever.evaluation.datasets import SAMPLE, DatasetKind, check_names
from agentic_retriever.evaluation.descriptions import Description, describe
from agentic_retriever.evaluation.material import RoutingMaterial
from agentic_retriever.evaluation.problems import ProblemReport
from agentic_retriever.evaluation.profiles import SAMPLE_EMBEDDING, dataset_profile, sample_profile
from agentic_retriever.evaluation.routing import RoutedQuery
from agentic_retriever.evaluation.vectors import SAME_MODEL, check_dimensions, embed_dataset, load_vectors, vectors_file
from agentic_retriever.evaluation.watching import SilentWatcher
from agentic_retriever.retrievers import REGISTRY, cards
from agentic_retriever.sample import SAMPLE_INDEXES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.embeddings import EmbeddingModel
    from agentic_retriever.evaluation.datasets import Dataset, LabelledQuery
    from agentic_retriever.evaluation.material import RoutingOptions
    from agentic_retriever.evaluation.vectors import KnownVectors, Vector
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.indices import IndexProfile
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.schema import StrategyCard

_SAMPLE_NAMES: Final = frozenset(index.name for index in SAMPLE_INDEXES)


def sample_indexes_of(datasets: Sequence[Dataset], existing: Sequence[str]) -> set[str]:
    """Return the indexes of the sample that data sets are about: those of ``sample``, and those that are nowhere else.

    Args:
        datasets: The data sets.
        existing: Indexes of the data directory.

    Returns:
        Names of sample indexes.
    """
    found: set[str] = set()
    for dataset in datasets:
        if dataset.kind is DatasetKind.QUESTIONS:
            named = {query.index for query in dataset.queries if query.index is not None} & _SAMPLE_NAMES
            found |= named if dataset.name == SAMPLE else named - set(existing)
    return found


def prepare(
    datasets: Sequence[Dataset],
    router: AgenticRouter,
    options: RoutingOptions,
    *,
    watcher: Watcher | None = None,
) -> RoutingMaterial:
    """Gather what routing is measured on.

    Every BEIR folder is an index of its own; a questions file is asked of the indexes that it names.

    Args:
        datasets: The data sets.
        router: Its embedding model computes the vectors that are not given; its indexes answer for questions files.
        options: How to measure.
        watcher: Hears how far it is.

    Returns:
        Profiles, questions and whatever was wrong.

    Raises:
        EvaluationError: If two data sets have one name, vectors do not fit each other, or no question is left.
        UnknownIndexError: If a question belongs to an index that is nowhere.
        EmbeddingError: If the embedding model failed.
        ConfigError: If there is no embedding model and one is needed.
    """
    check_names(datasets)
    return _Preparation(datasets, router, options, watcher or SilentWatcher()).run()


class _Preparation:
    """One run of :func:`prepare`."""

    def __init__(
        self, datasets: Sequence[Dataset], router: AgenticRouter, options: RoutingOptions, watcher: Watcher
    ) -> None:
        self._datasets = [dataset.limited(options.limit, options.seed) for dataset in datasets]
        self._collections = [dataset for dataset in self._datasets if dataset.kind is DatasetKind.BEIR]
        self._router = router
        self._options = options
        self._watcher = watcher
        self._from_sample = sample_indexes_of(datasets, router.index_names())
        self._notes: list[str] = []

    def run(self) -> RoutingMaterial:
        known = {dataset.name: self._vectors_of(dataset) for dataset in self._datasets}
        collections = {dataset.name: known[dataset.name] for dataset in self._collections}
        check_dimensions(collections)
        descriptions = describe(self._collections, self._options.descriptions)
        names = self._index_names()
        as_query = self._described(descriptions, collections)
        profiles = {
            dataset.name: dataset_profile(
                dataset,
                collections[dataset.name],
                description=descriptions[dataset.name].text,
                description_vector=as_query.get(dataset.name),
            )
            for dataset in self._collections
        }
        offered = {name: tuple(spec.card() for spec in REGISTRY.values()) for name in profiles}
        for name in names:
            profiles[name], offered[name] = self._existing(name)
            origin = SAMPLE if name in self._from_sample else "index"
            descriptions[name] = Description(profiles[name].description, origin)
        labelled, unlabelled = self._queries(known)
        _check_widths(profiles, labelled)
        return RoutingMaterial(
            profiles=profiles,
            cards=offered,
            queries=tuple(labelled),
            unlabelled=tuple(unlabelled),
            descriptions=descriptions,
            passages=self._passages(profiles),
            datasets=tuple({**d.facts(), "vectors": known[d.name].origin} for d in self._datasets),
            problems=ProblemReport.merged([r for d in self._datasets for r in (d.problems, known[d.name].problems)]),
            notes=tuple(self._notes),
            seed=self._options.seed,
        )

    def _embedder(self) -> EmbeddingModel:
        model = self._router.resources.embedding()
        if self._from_sample and model.name != SAMPLE_EMBEDDING:
            raise EvaluationError(
                f"the sample's vectors come from {SAMPLE_EMBEDDING}, the router uses {model.name}; set "
                "EMBEDDING_MODEL=local, or leave the sample out"
            )
        return model

    def _vectors_of(self, dataset: Dataset) -> KnownVectors:
        place = self._options.vectors
        if place is not None:
            path = vectors_file(place, dataset.name)
            if path.exists() or dataset.kind is DatasetKind.BEIR:
                return load_vectors(path, dataset)
        embedder = self._embedder()
        total = len(dataset.queries) + min(len(dataset.documents), self._options.most_documents)
        self._watcher.begin(f"embedding {dataset.name}", total)
        return embed_dataset(
            dataset, embedder, most_documents=self._options.most_documents, on_progress=self._watcher.advance
        )

    def _index_names(self) -> list[str]:
        """Name the existing indexes that are to be chosen from, in order of their first question."""
        taken = {dataset.name for dataset in self._collections}
        asked = [query.index for dataset in self._datasets for query in dataset.queries if query.index is not None]
        names = [name for name in dict.fromkeys([*asked, *self._options.also]) if name not in taken]
        existing = self._router.index_names()
        for name in names:
            if name not in existing and name not in self._from_sample:
                raise UnknownIndexError(unknown_name("index", name, {*existing, *taken, *_SAMPLE_NAMES}))
        return names

    def _existing(self, name: str) -> tuple[IndexProfile, tuple[StrategyCard, ...]]:
        if name in self._from_sample:
            description = next(index.description for index in SAMPLE_INDEXES if index.name == name)
            vector = self._embedder().embed_query(description)
            return sample_profile(name, description_vector=vector), tuple(spec.card() for spec in REGISTRY.values())
        index = self._router.index(name)
        return index.profile(), cards(index, measured=self._router.resources.trained(index).measured)

    def _described(
        self, descriptions: Mapping[str, Description], known: Mapping[str, KnownVectors]
    ) -> dict[str, Vector]:
        """Embed the descriptions as questions, as an index does; nothing when the model is not that of the vectors."""
        if not descriptions:
            return {}
        try:
            embedder = self._embedder()
            if self._options.vectors is not None and not self._same_model(embedder, known):
                self._notes.append(
                    f"the vectors do not come from the embedding model {embedder.name}, so what goes by descriptions "
                    "was left out; set EMBEDDING_MODEL to theirs"
                )
                return {}
            return {name: embedder.embed_query(found.text) for name, found in descriptions.items() if found.text}
        except AgenticRetrieverError as err:
            if self._options.vectors is None:
                raise
            self._notes.append(f"descriptions could not be embedded ({err}), so what goes by them was left out")
            return {}

    def _same_model(self, embedder: EmbeddingModel, known: Mapping[str, KnownVectors]) -> bool:
        """Embed one question whose vector is known and compare."""
        for dataset in self._collections:
            for query in dataset.queries:
                vector = known[dataset.name].queries.get(query.query_id)
                if vector is not None:
                    found = embedder.embed_query(query.text)
                    return found.shape == vector.shape and float(found @ vector) >= SAME_MODEL
        return True

    def _passages(self, profiles: Mapping[str, IndexProfile]) -> dict[str, Vector]:
        """Embed the descriptions as passages, as LlamaIndex's selector does."""
        names = [name for name, profile in profiles.items() if len(profile.description_vector)]
        if len(names) < len(profiles):
            return {}
        matrix = self._embedder().embed_sentences([profiles[name].description for name in names])
        return dict(zip(names, np.asarray(matrix, dtype=np.float32), strict=True))

    def _queries(self, known: Mapping[str, KnownVectors]) -> tuple[list[RoutedQuery], list[RoutedQuery]]:
        labelled: list[RoutedQuery] = []
        unlabelled: list[RoutedQuery] = []
        for dataset in self._datasets:
            vectors = known[dataset.name].queries
            for query in dataset.queries:
                if query.query_id in vectors:
                    made = self._routed(query, dataset, vectors[query.query_id])
                    (labelled if query.index is not None or not query.answerable else unlabelled).append(made)
        if not labelled:
            paths = ", ".join(str(dataset.path) for dataset in self._datasets)
            raise EvaluationError(f"no question of {paths} can be asked: none has both a label and a vector")
        return labelled, unlabelled

    def _routed(self, query: LabelledQuery, dataset: Dataset, vector: Vector) -> RoutedQuery:
        made = RoutedQuery(
            query_id=f"{dataset.name}/{query.query_id}",
            text=query.text,
            dataset=dataset.name,
            vector=vector,
            index=query.index if query.answerable else None,
            strategy=query.strategy,
            complexity=query.complexity,
        )
        given = self._options.complexity.get(dataset.name)
        return replace(made, complexity=given) if made.complexity is None and given is not None else made


def _check_widths(profiles: Mapping[str, IndexProfile], queries: Sequence[RoutedQuery]) -> None:
    """See that every question can be compared with every sample, or routing would go by words without saying so."""
    widths = {f"index {name}": profile.sample.shape[1] for name, profile in profiles.items() if len(profile.sample)}
    for query in queries:
        if query.vector is not None:
            widths.setdefault(f"questions of {query.dataset}", len(query.vector))
    if len(set(widths.values())) > 1:
        told = ", ".join(f"{what} {width}" for what, width in widths.items())
        raise EvaluationError(f"vectors of different dimensions cannot be compared: {told}; take one embedding model")
