from __future__ import annotations

import pytest
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from ranked_nodes import dump, ids, scores

from agentic_retriever.errors import StoreError
from agentic_retriever.retrievers.refining import EXPANDED_KEY, expand, section_neighbours


def chunk(doc, at, section="one", lang="en"):
    return TextNode(
        id_=f"{doc}#{at}",
        text=f"{doc} {at}",
        start_char_idx=at * 100,
        metadata={"section": section, "lang": lang},
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc)},
    )


@pytest.fixture(params=["memory", "edge"])
def index(request, make_index, make_edge_index):
    nodes = [chunk("d", at) for at in (3, 1, 0, 2)]
    nodes += [chunk("d", 4, "two"), chunk("e", 1), chunk("e", 2, lang="es"), TextNode(id_="alone", text="no source")]
    return (make_index if request.param == "memory" else make_edge_index)(nodes)


def hits_of(index, *wanted):
    found = {node.node_id: node for node in index.vector_store.get_nodes(node_ids=list(wanted))}
    return [NodeWithScore(node=found[i], score=1 - at / 10) for at, i in enumerate(wanted)]


def test_chunks_beside_a_hit_are_added_below_all_hits(index):
    hits = hits_of(index, "d#1", "e#1")
    before = dump(hits)
    got = expand(hits, section_neighbours(index, width=1), limit=10)
    assert ids(got) == ["d#1", "e#1", "d#0", "d#2", "e#2"]
    assert got[:2] == hits
    assert scores(got) == sorted(scores(got), reverse=True)
    assert len(set(scores(got))) == 5
    assert [n.node.metadata.get(EXPANDED_KEY) for n in got] == [None, None, "d#1", "d#1", "e#1"]
    assert EXPANDED_KEY in got[2].node.excluded_llm_metadata_keys
    assert dump(hits) == before
    stored = index.vector_store.get_nodes(node_ids=["d#0"])[0]
    assert EXPANDED_KEY not in stored.metadata


def test_another_section_or_document_is_not_touched(index):
    around = section_neighbours(index, width=5)
    assert [n.node_id for n in around(hits_of(index, "d#3")[0].node)] == ["d#0", "d#1", "d#2", "d#3"]
    assert [n.node_id for n in around(hits_of(index, "d#4")[0].node)] == ["d#4"]
    assert list(around(hits_of(index, "alone")[0].node)) == []
    assert list(around(chunk("gone", 1))) == []


def test_the_limit_holds(index):
    around = section_neighbours(index, width=5)
    assert ids(expand(hits_of(index, "d#1", "e#1"), around, limit=1)) == ["d#1", "e#1", "d#0"]
    assert ids(expand(hits_of(index, "d#1"), around, limit=0)) == ["d#1"]
    assert expand([], around, limit=3) == []


def test_the_callers_filters_hold_for_what_is_added(index):
    filters = MetadataFilters(filters=[MetadataFilter(key="lang", value="en")])
    assert ids(expand(hits_of(index, "e#1"), section_neighbours(index, width=1, filters=filters), limit=9)) == ["e#1"]
    empty = MetadataFilters(filters=[])
    assert len(expand(hits_of(index, "e#1"), section_neighbours(index, width=1, filters=empty), limit=9)) == 2


def test_a_store_that_fails_is_a_typed_error(make_index, monkeypatch):
    index = make_index([chunk("d", 1)])
    node = hits_of(index, "d#1")[0].node
    monkeypatch.setattr(type(index.vector_store), "get_nodes", lambda self, **kwargs: 1 / 0)
    with pytest.raises(StoreError, match="ZeroDivisionError"):
        section_neighbours(index, width=1)(node)
