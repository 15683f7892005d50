from __future__ import annotations

import numpy as np
import pytest
from evaluation_material import BOAT_QUERIES, BOATS, DIMENSION, embed, write_vectors

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import load_dataset
from agentic_retriever.evaluation.material import (
    KnownVectors,
    dataset_profile,
    describe,
    embed_dataset,
    load_vectors,
    read_descriptions,
    sample_profile,
    vectors_file,
)
from agentic_retriever.sample import SAMPLE_INDEXES


class CountingEmbedder:
    def __init__(self):
        self.passages = []

    def embed_query(self, text):
        return embed(text)

    def embed_passages(self, texts, *, on_progress=None):
        self.passages += texts
        on_progress(len(texts))
        return np.stack([embed(text) for text in texts]), len(texts)


def test_vectors_by_id_at_unit_length(boats, vectors):
    known = load_vectors(vectors_file(vectors, "boats"), load_dataset(boats))
    assert set(known.documents) == set(BOATS)
    assert set(known.queries) == set(BOAT_QUERIES)
    assert {len(vector) for vector in known.queries.values()} == {DIMENSION}
    assert known.problems.total == 0
    for text, vector in zip(BOATS.values(), known.documents.values(), strict=True):
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
        assert float(vector @ embed(text)) == pytest.approx(1, abs=1e-3)


def test_missing_duplicate_and_unusable_vectors_are_counted(boats, tmp_path):
    ids = ["b1", "b1", "b2", "b3", "b4"]
    rows = np.stack([embed(BOATS[i]) for i in ids])
    rows[2], rows[3] = 0, np.nan
    path = write_vectors(
        tmp_path / "v.npz", BOATS, BOAT_QUERIES, doc_ids=np.array(ids), doc_vectors=rows,
        query_ids=np.array(["q1", "other"]),
    )  # fmt: skip
    known = load_vectors(path, load_dataset(boats))
    assert set(known.documents) == {"b1", "b4"}
    assert dict(known.problems.counts) == {
        "duplicate_vector": 1,
        "missing_document_vector": 3,
        "missing_query_vector": 1,
        "unusable_vector": 2,
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"query_ids": None}, "lacks the arrays query_ids"),
        ({"doc_ids": np.array(["b1"])}, "doc_ids and doc_vectors must be"),
        ({"query_vectors": np.zeros((2, 7))}, "documents have 32 dimensions, questions 7"),
        ({"doc_vectors": np.array([["a"] * 3] * 5)}, "must hold numbers"),
        ({"doc_ids": np.array([object()] * 5)}, "without pickled objects"),
    ],
)
def test_unusable_files_are_named(boats, tmp_path, changes, told):
    path = write_vectors(tmp_path / "v.npz", BOATS, BOAT_QUERIES, **changes)
    with pytest.raises(EvaluationError, match=told) as caught:
        load_vectors(path, load_dataset(boats))
    assert "v.npz" in str(caught.value)


def test_no_file_and_no_npz(boats, tmp_path):
    with pytest.raises(EvaluationError, match="is missing"):
        load_vectors(tmp_path / "gone.npz", load_dataset(boats))
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(EvaluationError, match="cannot be read"):
        load_vectors(tmp_path / "text.npz", load_dataset(boats))
    with pytest.raises(EvaluationError, match="does not exist"):
        vectors_file(tmp_path / "nowhere", "boats")
    assert vectors_file(tmp_path / "text.npz", "boats") == tmp_path / "text.npz"


def test_computed_vectors_are_of_a_bounded_sample(boats):
    embedder, done = CountingEmbedder(), []
    known = embed_dataset(load_dataset(boats), embedder, most_documents=3, on_progress=done.append)
    assert len(known.documents) == len(embedder.passages) == 3
    assert sum(done) == 3 + len(BOAT_QUERIES)
    again = embed_dataset(load_dataset(boats), CountingEmbedder(), most_documents=3)
    assert list(again.documents) == list(known.documents)


def test_profile_of_a_folder(boats, vectors):
    dataset = load_dataset(boats)
    profile = dataset_profile(dataset, load_vectors(vectors / "boats.npz", dataset), "boats", sample_size=4)
    assert (profile.name, profile.nodes, profile.language) == ("boats", 5, "en")
    assert profile.sample.shape == (4, DIMENSION)
    assert profile.document_frequency["harbour"] == 2
    assert dataset_profile(dataset, KnownVectors(documents={}, queries={}, origin="")).sample.shape == (0, 0)


def test_profile_of_a_sample_index_needs_no_model():
    for index in SAMPLE_INDEXES:
        profile = sample_profile(index.name, description_vector=np.zeros(384, np.float32))
        assert profile.nodes == len(profile.sample) > 100
        assert profile.sample.shape[1] == 384


def test_descriptions_in_order_of_trust(boats, bread, tmp_path):
    datasets = [load_dataset(boats), load_dataset(bread)]
    found = describe(datasets, {"boats": "given"})
    assert (found["boats"].text, found["boats"].origin) == ("given", "file")
    assert (found["bread"].text, found["bread"].origin) == ("bread, dough and the oven", "dataset.json")
    (boats / "dataset.json").unlink()
    found = describe([load_dataset(boats), load_dataset(bread)], {})
    assert found["boats"].origin == "terms"
    assert "harbour" in found["boats"].text.split(", ")[:3]
    assert "needs" not in found["boats"].text.split(", ")[:3]


def test_titles_where_words_cannot_be_told_apart(tmp_path):
    from evaluation_material import write_beir, write_lines

    folder = write_beir(tmp_path / "deeds", BOATS, BOAT_QUERIES)
    titles = [f"โฉนดที่ดินแปลงที่ {at}" for at in range(3)]
    text = "ที่ดินในจังหวัดเชียงใหม่"
    records = [{"_id": f"b{at + 1}", "title": title, "text": text} for at, title in enumerate(titles)]
    write_lines(folder / "corpus.jsonl", records)
    [found] = describe([load_dataset(folder)], {}).values()
    assert (found.origin, found.text) == ("titles", ", ".join(titles))


def test_file_of_descriptions(tmp_path):
    path = tmp_path / "d.json"
    path.write_text('{"boats": " about boats "}')
    assert read_descriptions(path) == {"boats": "about boats"}
    for content in ("{", "[]", '{"boats": 3}'):
        path.write_text(content)
        with pytest.raises(EvaluationError, match=r"d\.json"):
            read_descriptions(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('["boats"]', "must be an object from the names of data sets to descriptions, got \"['boats']\""),
        ('{"bread": "loaves", "boats": 3}', "the description of 'boats' must be a text, got '3'; write one"),
        ('{"boats": null}', "the description of 'boats' must be a text, got 'None'; write one"),
        ('{"boats": {"en": "x"}}', "the description of 'boats' must be a text, got "),
    ],
)
def test_what_is_wrong_in_a_file_of_descriptions_is_named(tmp_path, content, told):
    path = tmp_path / "d.json"
    path.write_text(content)
    with pytest.raises(EvaluationError) as wrong:
        read_descriptions(path)
    assert str(wrong.value).startswith(str(path))
    assert told in str(wrong.value)
