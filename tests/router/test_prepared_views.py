import json
import shutil

import pytest
from llama_index.core.schema import Document
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from agentic_retriever.catalog.indexes import Indexes
from agentic_retriever.errors import ConfigError
from agentic_retriever.indices import StoredIndex
from agentic_retriever.indices.derived import DerivedCollection, DerivedView
from agentic_retriever.indices.fields import FieldDictionary
from agentic_retriever.schema import Strategy, View

TEXTS = ["The ferry leaves the harbour at nine.", "Bread rests for two hours.", "The anchor weighs ninety kilograms."]
DOCS = [Document(text=text, doc_id=f"d{at}", metadata={"kind": "note"}) for at, text in enumerate(TEXTS)]
DERIVED = ("keyword", "metadata", "profile.npz", "fields.json")


@pytest.fixture
def unbuilt(make, tmp_path, monkeypatch):
    """A router over an index that has lost all that is derived, where building fails the test; and what was begun."""
    make({"docs": DOCS}).close()
    for name in DERIVED:
        path = tmp_path / "data" / "indexes" / "docs" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    indexes = Indexes(tmp_path / "data")
    indexes.update(indexes.row("docs"), views={})
    indexes.close()
    begun, built = [], []
    with monkeypatch.context() as patched:
        patched.setattr(StoredIndex, "build_in_background", lambda index, _progress=None: begun.append(index.name))
        for kind, method in ((DerivedView, "current"), (DerivedCollection, "refresh")):
            patched.setattr(kind, method, lambda self, *_a, **_k: built.append(self))
        yield make(), begun
        assert built == []


def test_no_query_builds_anything_and_what_needs_it_is_not_offered(unbuilt):
    router, begun = unbuilt
    filters = MetadataFilters(filters=[MetadataFilter(key="kind", value="note")])
    for asked in ({}, {"filters": filters}, {"index": "docs"}):
        answer = router.query("When does the ferry leave?", **asked)
        assert answer.route.strategy.name == "vector"
        assert "ferry" in answer.nodes[0].node.text
    assert (set(begun), router.index("docs").views) == ({"docs"}, {View.CHUNKS})
    withheld = answer.route.withheld
    assert withheld.keys() == {"hybrid", "planner", "metadata", "recursive", "chunk_decoupling", "summary"}
    assert "no words yet" in withheld["hybrid"]
    assert "no values yet" in withheld["metadata"]
    pinned = router.retrieve("When does the ferry leave?", strategy=Strategy.HYBRID)
    assert [one.fallback for one in pinned.degraded if one.step == "hybrid.keyword"] == ["dense search alone"]
    assert "index build docs" in pinned.degraded[0].reason
    pinned = router.retrieve("A note of when the ferry leaves", strategy=Strategy.METADATA)
    assert [one.fallback for one in pinned.degraded if one.step == "metadata.values"] == ["dense search alone"]


def test_the_values_of_an_index_are_gathered_when_documents_come_and_go_and_kept_beside_it(make, tmp_path, monkeypatch):
    router = make({"docs": DOCS})
    router.add_index("docs", [Document(text="The ferry costs five.", doc_id="d9", metadata={"kind": "tariff"})])
    with monkeypatch.context() as patched:
        patched.setattr(FieldDictionary, "build", _fail)
        found = router.retrieve("Which tariff does the ferry have?", strategy=Strategy.METADATA)
        assert found.understood == ("kind is tariff",)
        router.close()
        router = make()
        assert router.retrieve("Which tariff does the ferry have?").route.features["metadata_values"] > 0
    router.remove_documents("docs", ["d9"])
    assert set(router.index("docs").fields().fields["kind"].values) == {"note"}
    before = router.index("docs").fields()
    router.close()
    assert make().index("docs").fields() == before


def test_conditions_are_read_where_a_field_has_more_values_than_a_profile_lists(make):
    starts = ["Bar", "Cor", "Dal", "Fen", "Gar", "Hal", "Kem", "Lor", "Mar", "Nor", "Pel", "Ros", "Sal", "Tor", "Ver"]
    ends = [
        "dini", "elli", "gard", "hoff", "ices", "kins", "lund", "mann", "nova", "oski", "quist", "rell", "son", "tes",
        "wick",
    ]  # fmt: skip
    names = [start + end for start in starts for end in ends]
    router = make(
        {"papers": [Document(text=f"Loads of wing {at}.", metadata={"author": name}) for at, name in enumerate(names)]}
    )
    assert not router.index("papers").profile().field_values
    found = router.retrieve("Papers by Dallund")
    assert found.route.strategy.name == "metadata"
    assert [node.node.metadata["author"] for node in found.nodes] == ["Dallund"]


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 3, "version": 1, "fields": [{"name": 1}]}'])
def test_values_that_cannot_be_read_are_gathered_again(make, tmp_path, text, caplog):
    before = make({"docs": DOCS}).index("docs").fields()
    (tmp_path / "data" / "indexes" / "docs" / "fields.json").write_text(text, encoding="utf-8")
    index = make().stored_index("docs")
    index.build_search()
    assert index.fields() == before
    assert "fields.json cannot be used" in caplog.text


def test_an_index_without_views_builds_none_beside_questions(make, monkeypatch):
    begun = []
    monkeypatch.setattr(StoredIndex, "build_in_background", lambda index, _progress=None: begun.append(index.name))
    router = make({})
    router.add_index("docs", DOCS, views=False)
    router.query("When does the ferry leave?")
    assert begun == []
    router.add_index("docs", DOCS[:1], views=True)
    assert begun == ["docs"]


def _fail(*_args, **_more):
    raise AssertionError("a question built something")


def test_what_is_missing_is_built_when_the_index_is_opened_and_there_when_documents_were_added(make, tmp_path):
    router = make({"docs": DOCS})
    index = router.index("docs")
    assert index.is_searchable
    router.remove_documents("docs", ["d1"])
    assert index.is_searchable
    assert index.profile().nodes == 2
    router.close()
    shutil.rmtree(tmp_path / "data" / "indexes" / "docs" / "keyword")
    assert make().query("When does the ferry leave?").route.strategy.name == "hybrid"


QUESTION = "¿Cuál es la tasa del ISR?"
TAXES = ["El Impuesto Sobre la Renta se paga cada año.", "La retención anual es fija.", "El IVA es otra cosa."]
TERMS = {"expand": {"ISR": "Impuesto Sobre la Renta"}, "boost": {"tasa": ["retención", "anual"]}}


@pytest.mark.parametrize("kind", ["inline", "file"])
def test_a_question_is_searched_with_the_other_forms_of_its_terms_and_lifts_what_was_asked_for(make, tmp_path, kind):
    path = tmp_path / "terms.json"
    path.write_text(json.dumps(TERMS), encoding="utf-8")
    given = {"inline": json.dumps(TERMS), "file": str(path)}[kind]
    plain = make({"tax": [Document(text=text, doc_id=f"d{at}") for at, text in enumerate(TAXES)]}).retrieve(QUESTION)
    assert plain.understood == ()
    assert all("bm25" not in node.details["retrieval"] for node in plain.nodes)
    router = make(config={"domain_terms": given})
    found = router.retrieve(QUESTION)
    assert found.understood == ("ISR = Impuesto Sobre la Renta", "lifted by: retención, anual")
    by_id = {node.node.ref_doc_id: node for node in found.nodes}
    assert by_id["d0"].details["retrieval"]["bm25"] > 0
    lifted = by_id["d1"]
    assert lifted.details["lifted_by"] == ["retención", "anual"]
    assert lifted.score == pytest.approx(lifted.details["retrieval"]["retrieved"] + 0.1)
    assert router.retrieve("¿Y el Impuesto sobre la Renta?").understood == ("Impuesto Sobre la Renta = ISR",)


def test_the_answer_cache_knows_the_terms_of_a_file(make, tmp_path):
    path = tmp_path / "terms.json"
    keys = set()
    for forms in ("Impuesto Sobre la Renta", "Income tax"):
        path.write_text(json.dumps({"expand": {"ISR": forms}}), encoding="utf-8")
        docs = [Document(text="La tasa del ISR es de 20 %."), *(Document(text=text) for text in TAXES)]
        router = make({"tax": docs}, config={"domain_terms": str(path)})
        assert not router.query(QUESTION).cached
        assert router.query(QUESTION).cached
        keys.add(router._pipeline._key(router._pipeline._begin(_question(QUESTION))))
        router.close()
    assert len(keys) == 2


def _question(text):
    from agentic_retriever.pipeline.query import Question

    return Question(query=text)


@pytest.mark.parametrize(("text", "told"), [
    ("nowhere.json", "No such file"), ("{", "EOF"), ('{"more": {}}', "more: Extra inputs"),
    ('{"boost": 1}', "boost: "),
    ('{"expand": {"ISR": 5}}', "expand.ISR: "), ('{"expand": {"ISR": "!"}}', "letter or digit"),
    ('{"expand": {"ISR": "%s"}}' % ("x" * 201), "at most 200 characters"),
])  # fmt: skip
def test_terms_that_cannot_be_read_are_named(make, text, told):
    with pytest.raises(ConfigError, match="domain_terms") as caught:
        make(config={"domain_terms": text})
    assert told in str(caught.value)
