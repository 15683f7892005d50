"""How well stage one knows what it does not know, and how well its probabilities come true; neither may fall.

The sample's questions with odd numbers chose weights and thresholds, those with even ones report.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from agentic_retriever.embeddings import EmbeddingModel, PackedVectors, embedding_name, text_hash
from agentic_retriever.evaluation.reliability import measure_reliability
from agentic_retriever.indices import embedded_text
from agentic_retriever.indices.profile import ProfiledNode, make_profile, sample_ids
from agentic_retriever.ingestion import ChunkSettings, SourceDocument, chunk_document, discover, read_source
from agentic_retriever.routing import ProfileClassifier, support_of
from agentic_retriever.routing.abstention import DEFAULT_SUPPORT_BELOW
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS, load_questions

COLLECTIONS = ("cranfield", "cacm", "cisi", "xquad-en", "xquad-es", "xquad-th")
NO_DESCRIPTION = np.zeros(0, np.float32)


class Searchable:
    """An index of the sample: its profile, and its texts by nearness to a question."""

    def __init__(self, sample, model_name):
        documents = [d for file in discover(sample.folder) for d in read_source(file, root=sample.folder)]
        nodes = [
            node
            for document in documents
            if isinstance(document, SourceDocument)
            for node in chunk_document(document, ChunkSettings())
        ]
        self.texts = {node.node_id: embedded_text(node) for node in nodes}
        packed = PackedVectors(VECTORS).get_many(model_name, [text_hash(text) for text in self.texts.values()])
        self.vectors = {node_id: packed[text_hash(text)] for node_id, text in self.texts.items()}
        self.profile = make_profile(
            [ProfiledNode(node.node_id, self.texts[node.node_id], node.metadata) for node in nodes],
            np.stack([self.vectors[node_id] for node_id in sample_ids(list(self.texts))]),
            name=sample.name,
            description=sample.description,
            description_vector=NO_DESCRIPTION,
            version=1,
        )

    def nearest(self, vector, top_k=10):
        ranked = sorted(self.texts, key=lambda node_id: -float(self.vectors[node_id] @ vector))
        return [self.texts[node_id] for node_id in ranked[:top_k]]


@pytest.fixture(scope="module")
def judged(local_embedding):
    """For every sample question: whether its number is even, whether it has an answer, and what both checks say."""
    name = embedding_name(local_embedding)
    model = EmbeddingModel(local_embedding, name=name)
    indexes = {sample.name: Searchable(sample, name) for sample in SAMPLE_INDEXES}
    profiles = [index.profile for index in indexes.values()]
    rows = []
    for question in load_questions():
        vector = model.embed_query(question["query"])
        selection = ProfileClassifier().classify(question["query"], profiles, query_vector=vector)
        index = indexes[selection.name]
        support = support_of(question["query"], index.profile, index.nearest(vector), query_vector=vector)
        declined = selection.abstained or support.probability < DEFAULT_SUPPORT_BELOW
        even = int(question["id"].split("-")[1]) % 2 == 0
        rows.append((even, question["answerable"], bool(question.get("looks_like")), selection.abstained, declined))
    return np.array(rows, dtype=bool)


def precision_and_recall(flagged, answerable):
    right = (flagged & ~answerable).sum()
    return right / flagged.sum(), right / (~answerable).sum()


def test_stage_one_abstains_seldom_in_error(judged):
    _, answerable, looks_like, abstained, _ = judged.T
    precision, recall = precision_and_recall(abstained, answerable)
    assert precision >= 0.9
    assert recall >= 0.6
    assert abstained[~answerable & ~looks_like].mean() >= 0.9


def test_both_checks_together_find_what_has_no_answer(judged):
    even, answerable, looks_like, _, declined = judged.T
    precision, recall = precision_and_recall(declined, answerable)
    assert precision >= 0.8
    assert recall >= 0.8
    held_out_precision, held_out_recall = precision_and_recall(declined[even], answerable[even])
    assert held_out_precision >= 0.75
    assert held_out_recall >= 0.75
    assert declined[~answerable & ~looks_like].mean() == 1.0


@pytest.fixture(scope="module")
def collections(shared_data):
    profiles, asked = [], []
    for name in COLLECTIONS:
        vectors = np.load(shared_data / "embeddings" / "multilingual-e5-small" / f"{name}.npz")
        by_id = dict(zip(vectors["doc_ids"].tolist(), _units(vectors["doc_vectors"]), strict=True))
        of_query = dict(zip(vectors["query_ids"].tolist(), _units(vectors["query_vectors"]), strict=True))
        folder = shared_data / "collections" / name
        nodes = [
            ProfiledNode(record["_id"], f"{record['title']}\n{record['text']}".strip(), record.get("metadata", {}))
            for record in _lines(folder / "corpus.jsonl")
            if record["_id"] in by_id
        ]
        sample = np.stack([by_id[node_id] for node_id in sample_ids([node.node_id for node in nodes])])
        profiles.append(
            make_profile(nodes, sample, name=name, description="", description_vector=NO_DESCRIPTION, version=1)
        )
        records = [record for record in _lines(folder / "queries.jsonl") if record["_id"] in of_query]
        asked += [(name, r["text"], of_query[r["_id"]]) for r in records[:: 5 if len(records) > 500 else 1]]
    return profiles, asked


@pytest.mark.shared_data
def test_probabilities_come_true(collections):
    profiles, asked = collections
    counts = {name: sum(asked_of == name for asked_of, _, _ in asked) for name in COLLECTIONS}
    classifier = ProfileClassifier()
    selections = [classifier.classify(text, profiles, query_vector=vector) for _, text, vector in asked]
    sure = [selection.confidence for selection in selections]
    right = [selection.name == name for selection, (name, _, _) in zip(selections, asked, strict=True)]
    assert measure_reliability(sure, right).ece <= 0.05
    # Every collection counts the same, however many questions it has.
    shares = [1 / counts[name] for name, _, _ in asked]
    assert measure_reliability(sure, right, weights=shares).ece <= 0.05
    assert np.mean([selection.abstained for selection in selections]) <= 0.02


def _units(vectors):
    wide = vectors.astype(np.float32)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def _lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
