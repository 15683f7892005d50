"""What routing reaches on the sample questions and on the public collections; the figures may rise, not fall."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest
from routing_material import make_card

from agentic_retriever.indices.profile import ProfiledNode, make_profile, sample_ids
from agentic_retriever.ingestion import ChunkSettings, SourceDocument, chunk_document, discover, read_source
from agentic_retriever.routing import HeuristicSelector, ProfileClassifier, assess_complexity, query_features
from agentic_retriever.sample import SAMPLE_INDEXES, load_questions
from agentic_retriever.schema import Complexity, Strategy

COLLECTIONS = ("cranfield", "cacm", "cisi", "xquad-en", "xquad-es", "xquad-th")


@pytest.fixture(scope="module")
def questions():
    return load_questions()


@pytest.fixture(scope="module")
def sample_profiles():
    profiles = {}
    for sample in SAMPLE_INDEXES:
        documents = [d for file in discover(sample.folder) for d in read_source(file, root=sample.folder)]
        nodes = [
            ProfiledNode(node.node_id, node.get_content(), node.metadata)
            for document in documents
            if isinstance(document, SourceDocument)
            for node in chunk_document(document, ChunkSettings())
        ]
        none = np.zeros((0, 1), np.float32)
        profiles[sample.name] = make_profile(
            nodes, none, name=sample.name, description=sample.description, description_vector=none[:, 0], version=1
        )
    return profiles


def test_sample_questions_find_their_index_by_words_alone(questions, sample_profiles):
    answerable = [question for question in questions if question["answerable"]]
    profiles = list(sample_profiles.values())
    found = [ProfileClassifier().classify(q["query"], profiles, query_vector=None).name for q in answerable]
    assert np.mean([name == q["index"] for name, q in zip(found, answerable, strict=True)]) >= 0.97


def test_sample_questions_find_their_strategy(questions, sample_profiles):
    cards = [make_card(strategy) for strategy in Strategy]
    right = []
    for question in questions:
        # The weights were chosen on the odd numbers.
        if not question["index"] or int(question["id"].split("-")[1]) % 2:
            continue
        _, score = assess_complexity(question["query"])
        features = query_features(question["query"], sample_profiles[question["index"]], score)
        selection = HeuristicSelector().select(question["query"], cards, features=features)
        right.append(selection.name == question["strategy"])
    assert len(right) >= 40
    assert np.mean(right) >= 0.9


def test_sample_questions_get_their_complexity(questions):
    right = defaultdict(list)
    for question in questions:
        verdict, _ = assess_complexity(question["query"])
        right[question["complexity"]].append(verdict.value == question["complexity"])
    assert set(right) == {"simple", "complex"}
    assert np.mean([np.mean(found) for found in right.values()]) >= 0.9


@pytest.mark.shared_data
def test_questions_in_two_steps_are_told_from_those_in_one(shared_data):
    complex_share = {
        name: _by_parity(
            [
                assess_complexity(record["text"])[0] is Complexity.COMPLEX
                for record in _lines(shared_data / "collections" / name / "queries.jsonl")
            ]
        )
        for name in ("xquad-en", "xquad-es", "xquad-th", "hotpotqa-100")
    }
    # Cues and weights were chosen on even positions; odd ones were held out. Reached: 0.905 on both.
    for part, least in (("odd", 0.88), ("all", 0.88)):
        one, two = complex_share["xquad-en"][part], complex_share["hotpotqa-100"][part]
        assert (1.0 - one + two) / 2 >= least, complex_share
        for language in ("xquad-es", "xquad-th"):
            assert complex_share[language][part] <= one + 0.03, complex_share


@pytest.mark.shared_data
def test_six_collections_are_told_apart(shared_data):
    profiles, queries = [], {}
    for name in COLLECTIONS:
        vectors = np.load(shared_data / "embeddings" / "multilingual-e5-small" / f"{name}.npz")
        by_id = dict(zip(vectors["doc_ids"].tolist(), _units(vectors["doc_vectors"]), strict=True))
        asked = dict(zip(vectors["query_ids"].tolist(), _units(vectors["query_vectors"]), strict=True))
        nodes = [
            ProfiledNode(record["_id"], f"{record['title']}\n{record['text']}".strip(), record.get("metadata", {}))
            for record in _lines(shared_data / "collections" / name / "corpus.jsonl")
            if record["_id"] in by_id
        ]
        sample = np.stack([by_id[node_id] for node_id in sample_ids([node.node_id for node in nodes])])
        profiles.append(
            make_profile(nodes, sample, name=name, description="", description_vector=sample[0, :0], version=1)
        )
        # Every third question of the large collections keeps this short.
        records = _lines(shared_data / "collections" / name / "queries.jsonl")
        records = [record for record in records if record["_id"] in asked]
        queries[name] = [(r["text"], asked[r["_id"]]) for r in records[:: 3 if len(records) > 500 else 1]]
    classifier = ProfileClassifier()
    accuracy = {
        name: np.mean([classifier.classify(text, profiles, query_vector=v).name == name for text, v in pairs])
        for name, pairs in queries.items()
    }
    assert np.mean(list(accuracy.values())) >= 0.96, accuracy


def _by_parity(right):
    return {"odd": np.mean(right[1::2]), "all": np.mean(right)}


def _units(vectors):
    wide = vectors.astype(np.float32)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def _lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
