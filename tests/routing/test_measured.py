import json
from collections import defaultdict

import numpy as np
import pytest
from routing_material import make_card

from agentic_retriever import routing
from agentic_retriever.embeddings import EmbeddingModel, PackedVectors, embedding_name, text_hash
from agentic_retriever.evaluation.measures import measure_reliability
from agentic_retriever.indices import embedded_text
from agentic_retriever.indices.profile import ProfiledNode, make_profile, sample_ids
from agentic_retriever.ingestion import SourceDocument, discover, read_source
from agentic_retriever.ingestion.chunking import ChunkSettings, chunk_document
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS, load_questions
from agentic_retriever.schema import Complexity, Strategy
from agentic_retriever.synthesis.evidence import unrelated_questions
from agentic_retriever.text import detect_language

COLLECTIONS = ("cranfield", "cacm", "cisi", "xquad-en", "xquad-es", "xquad-th")


NO_VECTOR = np.zeros(0, np.float32)
QUESTIONS = load_questions()


def sample_nodes(sample):
    """The chunks of an index of the sample."""
    documents = [d for file in discover(sample.folder) for d in read_source(file, root=sample.folder)]
    documents = [document for document in documents if isinstance(document, SourceDocument)]
    return [node for document in documents for node in chunk_document(document, ChunkSettings())]


def profile_of(nodes, sample, name, description=""):
    return make_profile(nodes, sample, name=name, description=description, description_vector=NO_VECTOR, version=1)


@pytest.fixture(scope="module")
def sample_profiles():
    return {
        sample.name: profile_of(
            [ProfiledNode(node.node_id, node.get_content(), node.metadata) for node in sample_nodes(sample)],
            np.zeros((0, 1), np.float32), sample.name, sample.description,
        )
        for sample in SAMPLE_INDEXES
    }  # fmt: skip


def test_sample_questions_find_their_index_by_words_alone(sample_profiles):
    answerable = [question for question in QUESTIONS if question["answerable"]]
    profiles = list(sample_profiles.values())
    found = [routing.ProfileClassifier().classify(q["query"], profiles, query_vector=None).name for q in answerable]
    assert np.mean([name == q["index"] for name, q in zip(found, answerable, strict=True)]) >= 0.97


def test_sample_questions_find_their_strategy(sample_profiles):
    cards = [make_card(strategy) for strategy in Strategy]
    right = []
    for question in QUESTIONS:
        # The weights were chosen on the odd numbers.
        if not question["index"] or int(question["id"].split("-")[1]) % 2:
            continue
        _, score = routing.assess_complexity(question["query"])
        features = routing.query_features(question["query"], sample_profiles[question["index"]], score)
        selection = routing.HeuristicSelector().select(question["query"], cards, features=features)
        right.append(selection.name == question["strategy"])
    assert len(right) >= 40
    assert np.mean(right) >= 0.9


def test_sample_questions_get_their_complexity():
    right = defaultdict(list)
    for question in QUESTIONS:
        verdict, _ = routing.assess_complexity(question["query"])
        right[question["complexity"]].append(verdict.value == question["complexity"])
    assert set(right) == {"simple", "complex"}
    assert np.mean([np.mean(found) for found in right.values()]) >= 0.9


@pytest.mark.shared_data
def test_questions_in_two_steps_are_told_from_those_in_one(shared_data):
    complex_share = {}
    for name in ("xquad-en", "xquad-es", "xquad-th", "hotpotqa-100"):
        queries = [record["text"] for record in _lines(shared_data / "collections" / name / "queries.jsonl")]
        found = [routing.assess_complexity(query)[0] is Complexity.COMPLEX for query in queries]
        complex_share[name] = {"odd": np.mean(found[1::2]), "all": np.mean(found)}
    # Cues and weights were chosen on even positions; odd ones were held out. Reached: 0.905 on both.
    for part, least in (("odd", 0.88), ("all", 0.88)):
        one, two = complex_share["xquad-en"][part], complex_share["hotpotqa-100"][part]
        assert (1.0 - one + two) / 2 >= least, complex_share
        for language in ("xquad-es", "xquad-th"):
            assert complex_share[language][part] <= one + 0.03, complex_share


def _units(vectors):
    wide = vectors.astype(np.float32)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def _lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Searchable:
    """An index of the sample: its profile, and its texts by nearness to a question."""

    def __init__(self, sample, model_name):
        nodes = sample_nodes(sample)
        self.texts = {node.node_id: embedded_text(node) for node in nodes}
        packed = PackedVectors(VECTORS).get_many(model_name, [text_hash(text) for text in self.texts.values()])
        self.vectors = {node_id: packed[text_hash(text)] for node_id, text in self.texts.items()}
        self.profile = profile_of(
            [ProfiledNode(node.node_id, self.texts[node.node_id], node.metadata) for node in nodes],
            np.stack([self.vectors[node_id] for node_id in sample_ids(list(self.texts))]),
            sample.name,
            sample.description,
        )


@pytest.fixture(scope="module")
def judged(local_embedding):
    """For every sample question: whether its number is even, it has an answer, and stage one abstains."""
    name = embedding_name(local_embedding)
    model = EmbeddingModel(local_embedding, name=name)
    indexes = {sample.name: Searchable(sample, name) for sample in SAMPLE_INDEXES}
    profiles = [index.profile for index in indexes.values()]
    rows = []
    for question in QUESTIONS:
        vector = model.embed_query(question["query"])
        selection = routing.ProfileClassifier().classify(question["query"], profiles, query_vector=vector)
        even = int(question["id"].split("-")[1]) % 2 == 0
        rows.append((even, question["answerable"], bool(question.get("looks_like")), selection.abstained))
    return np.array(rows, dtype=bool)


def precision_and_recall(flagged, answerable):
    right = (flagged & ~answerable).sum()
    return right / flagged.sum(), right / (~answerable).sum()


def test_stage_one_abstains_seldom_in_error(judged):
    _, answerable, looks_like, abstained = judged.T
    precision, recall = precision_and_recall(abstained, answerable)
    assert precision >= 0.9
    assert recall >= 0.6
    assert abstained[~answerable & ~looks_like].mean() >= 0.9


@pytest.fixture(scope="module")
def collected(shared_data):
    """The profile of each collection, and its questions with their vectors."""
    profiles, asked = {}, {}
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
        profiles[name] = profile_of(nodes, sample, name)
        # Every third question of the large collections keeps this short.
        records = [record for record in _lines(folder / "queries.jsonl") if record["_id"] in of_query]
        asked[name] = [(r["text"], of_query[r["_id"]]) for r in records[:: 3 if len(records) > 500 else 1]]
    return profiles, asked


@pytest.fixture(scope="module")
def classifier(local_embedding):
    model = EmbeddingModel(local_embedding, name=embedding_name(local_embedding))
    asked = {name: [model.embed_query(text) for text in unrelated_questions(name)] for name in ("en", "es", "th")}
    return routing.ProfileClassifier(
        unrelated=lambda query, _: np.array(asked.get(detect_language(query), asked["en"]))
    )


@pytest.mark.shared_data
@pytest.mark.parametrize(("asked_in", "least"), [("th", 0.45), ("es", 0.8)])
def test_a_question_finds_the_index_that_answers_it_although_another_one_is_in_its_language(
    collected, classifier, local_embedding, asked_in, least
):
    profiles, asked = collected
    samples = [Searchable(sample, embedding_name(local_embedding)).profile for sample in SAMPLE_INDEXES]
    others = [profile for profile in samples if profile.language == asked_in]
    wanted = profiles["xquad-en"]
    questions = asked[f"xquad-{asked_in}"][::4]
    found = [classifier.classify(text, [*others, wanted], query_vector=vector).name for text, vector in questions]
    assert len(others) == 1
    assert found.count(wanted.name) >= least * len(found)  # 2 % of those in Thai if compared as in one language


@pytest.mark.shared_data
def test_six_collections_are_told_apart_with_probabilities_that_come_true(collected, classifier):
    profiles, asked = collected
    names = [name for name in COLLECTIONS for _ in asked[name]]
    every = [question for name in COLLECTIONS for question in asked[name]]
    selections = [classifier.classify(text, list(profiles.values()), query_vector=vector) for text, vector in every]
    counts = {name: names.count(name) for name in COLLECTIONS}
    sure = [selection.confidence for selection in selections]
    right = [selection.name == name for selection, name in zip(selections, names, strict=True)]
    found = [name for name, fine in zip(names, right, strict=True) if fine]
    accuracy = {name: found.count(name) / counts[name] for name in COLLECTIONS}
    assert np.mean(list(accuracy.values())) >= 0.96, accuracy
    assert measure_reliability(sure, right).ece <= 0.05
    # Every collection counts the same, however many questions it has.
    assert measure_reliability(sure, right, weights=[1 / counts[name] for name in names]).ece <= 0.05
    assert np.mean([selection.abstained for selection in selections]) <= 0.02
