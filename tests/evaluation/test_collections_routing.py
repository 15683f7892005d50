"""What the harness measures on the public collections; the figures may rise, not fall."""

from __future__ import annotations

import pytest
from evaluation_material import stage_one

from agentic_retriever.config import RouterConfig
from agentic_retriever.evaluation.datasets import load_dataset
from agentic_retriever.evaluation.material import RoutedQuery, dataset_profile
from agentic_retriever.evaluation.routing import Contender
from agentic_retriever.evaluation.vectors import load_vectors
from agentic_retriever.resources import make_classifier

COLLECTIONS = ("cranfield", "cacm", "cisi", "xquad-en", "xquad-es", "xquad-th")


@pytest.mark.shared_data
def test_six_collections_by_their_content(shared_data, tmp_path):
    profiles, queries = [], []
    for name in COLLECTIONS:
        dataset = load_dataset(shared_data / "collections" / name).limited(200, seed=0)
        known = load_vectors(shared_data / "embeddings" / "multilingual-e5-small" / f"{name}.npz", dataset)
        assert dataset.problems.total == known.problems.total == 0
        profiles.append(dataset_profile(dataset, known))
        queries += [
            RoutedQuery(
                query_id=f"{name}/{q.query_id}", text=q.text, dataset=name, vector=known.queries[q.query_id], index=name
            )
            for q in dataset.queries
        ]
    classifier = make_classifier(RouterConfig(data_dir=tmp_path, classifier="profile"), None)
    found = stage_one(queries, profiles, Contender(classifier=classifier))
    assert found.outcomes.total == 200 * 4 + 52 + 76
    assert not found.failures
    assert found.outcomes.macro_accuracy >= 0.96, found.to_dict()
    assert found.ece <= 0.05
