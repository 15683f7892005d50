from __future__ import annotations

import json

import pytest
from llama_index.core.schema import Document
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.testing import FakeEmbedding, FakeLLM

LANDS = [
    ("a", "เชียงใหม่", "โฉนด", 7.25, 2561),
    ("b", "เชียงใหม่", "โฉนด", 12.0, 2540),
    ("c", "เชียงใหม่", "น.ส.3", 6.0, 2560),
    ("d", "ลำพูน", "โฉนด", 8.0, 2555),
    ("e", "ชลบุรี", "โฉนด", 5.0, 2566),
]


@pytest.fixture
def router(tmp_path):
    documents = [
        Document(
            text=f"ที่ดินแปลง {name} เนื้อที่ {area} ไร่",
            doc_id=name,
            metadata={"province": province, "deed_type": kind, "area_rai": area, "year": year},
        )
        for name, province, kind, area, year in LANDS
    ]
    with AgenticRouter(RouterConfig(data_dir=tmp_path), embedding=FakeEmbedding(dimension=32)) as made:
        made.add_index("lands", documents, description="ที่ดิน")
        yield made


def ids(retrieval):
    return sorted(n.node.ref_doc_id for n in retrieval.nodes)


def test_values_and_ranges_become_filters_and_an_impossible_one_is_dropped_and_named(router):
    retrieval = router.retrieve("ที่ดินในเชียงใหม่ โฉนด พื้นที่ 5 ถึง 10 ไร่", strategy="metadata")
    assert ids(retrieval) == ["a"]
    assert len(retrieval.understood) == 3
    assert not retrieval.degraded
    retrieval = router.retrieve("ที่ดินในเชียงใหม่ โฉนด พื้นที่ 5 ถึง 10 ไร่ หลังปี 2599", strategy="metadata")
    assert ids(retrieval) == ["a"]
    [lost] = retrieval.degraded
    assert lost.step == "metadata.filter"
    assert "2599" in lost.reason
    assert len(retrieval.understood) == 3
    answer = router.query("ที่ดินในเชียงใหม่ โฉนด พื้นที่ 5 ถึง 10 ไร่", strategy="metadata")
    assert len(answer.to_dict()["understood"]) == 3


def test_a_callers_filter_is_never_relaxed_and_new_values_are_known_at_once(router):
    mine = MetadataFilters(filters=[MetadataFilter(key="province", value="ลำพูน", operator=FilterOperator.EQ)])
    retrieval = router.retrieve("โฉนดในเชียงใหม่ พื้นที่ 5 ถึง 10 ไร่", strategy="metadata", filters=mine)
    assert ids(retrieval) == ["d"]
    none = MetadataFilters(filters=[MetadataFilter(key="province", value="ไม่มี", operator=FilterOperator.EQ)])
    assert ids(router.retrieve("โฉนดในเชียงใหม่", strategy="metadata", filters=none)) == []
    plain = "อะไรดี"
    assert [n.node.node_id for n in router.retrieve(plain, strategy="metadata").nodes] == [
        n.node.node_id for n in router.retrieve(plain, strategy="vector").nodes
    ]
    assert router.retrieve(plain, strategy="metadata").understood == ()
    question = "โฉนดในภูเก็ต พื้นที่ 5 ถึง 10 ไร่"
    assert "ภูเก็ต" not in " ".join(router.retrieve(question, strategy="metadata").understood)
    metadata = {"province": "ภูเก็ต", "deed_type": "โฉนด", "area_rai": 6.0, "year": 2560}
    router.add_index("lands", [Document(text="ที่ดินแปลง f", doc_id="f", metadata=metadata)])
    assert ids(router.retrieve(question, strategy="metadata")) == ["f"]


def with_model(tmp_path, reply):
    llm = reply if isinstance(reply, FakeLLM) else FakeLLM(reply)
    made = AgenticRouter(RouterConfig(data_dir=tmp_path / "m"), embedding=FakeEmbedding(dimension=32), llm=llm)
    documents = [
        Document(text=f"Land {name}", doc_id=name, metadata={"province": province, "year": year})
        for name, province, _kind, _area, year in LANDS
    ]
    made.add_index("lands", documents)
    return made


def test_a_failing_model_leaves_the_filters_that_words_give(tmp_path):
    with with_model(tmp_path, [ConnectionError("down")]) as router:
        retrieval = router.retrieve("ที่ดินในลำพูน หลังปี 2550", strategy="metadata")
        assert ids(retrieval) == ["d"]
        assert "filters.llm" in {d.step for d in retrieval.degraded}


def test_the_model_is_asked_and_cannot_filter_on_what_is_not_there(tmp_path):
    wrong = {"field": "secret", "operator": "==", "value": "x"}
    reply = json.dumps([wrong, {"field": "province", "operator": "==", "value": "ลำพูน"}])
    with with_model(tmp_path, [reply]) as router:
        retrieval = router.retrieve("where is d", strategy="metadata")
        assert "secret" not in " ".join(retrieval.understood)
        assert "filters.llm" in {d.step for d in retrieval.degraded}


def test_summaries_are_written_by_the_model_where_there_is_one(tmp_path):
    model = FakeLLM(["<think>Hm.</think>A summary that the model wrote."])
    with with_model(tmp_path, model) as router:
        router.build_views("lands")
        assert "summary" in {view.value for view in router.index("lands").views}
        assert any("Land" in prompt for prompt in model.prompts)
