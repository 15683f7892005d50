from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_retriever.indices.profile import ProfiledNode, make_profile
from agentic_retriever.routing import HeuristicSelector, assess_complexity, query_features
from agentic_retriever.routing.features import names_people


@pytest.fixture
def articles(make):
    texts = ["clustering of citations", "the hand of the operator", "a hand at work", "hand and glove", *["x"] * 50]
    authors = ["Pooch, U. W.", "Prieve, B. G.", "Hand, D.", "Salton, G.", "Núñez, M.", "National Library"]
    return make("articles", texts, [{"authors": [authors[at % len(authors)]]} for at in range(len(texts))])


@pytest.fixture
def owners(make):
    names = ["นายสมชาย แก้วไพร", "นางสาวกานดา ใจดี", "นายเอก ทองคำ"]
    return make("owners", ["โฉนดที่ดิน"] * 3, [{"owner": name} for name in names])


@pytest.mark.parametrize(
    "query",
    [
        "I am interested in articles written either by Prieve or Udo Pooch",
        "what papers are there by G. Salton and others",
        "anything by Knuth, Salton or Hoare",
        "articles by salton",
        "written by nunez",
        "What has Salton published about clustering?",
        "artículos escritos por Nuñez sobre coches de segunda mano",
    ],
)
def test_people_are_found(query, articles):
    assert names_people(query, articles)


@pytest.mark.parametrize(
    "query",
    [
        "sorting by hand",
        "the work by hand is slow",
        "by which methods are citations clustered",
        "articles by Knuth or Hoare",
        "Salton street",
        "clustering by similarity as in Salton",
        "read by machine, Salton",
        "",
    ],
)
def test_others_are_not(query, articles):
    assert not names_people(query, articles)


def test_names_without_capitals_in_their_script(owners):
    assert names_people("ที่ดินแปลงไหนเป็นของนายสมชาย แก้วไพรบ้าง", owners)
    assert names_people("เจ้าของคือนางสาวกานดา", owners)
    assert not names_people("ที่ดินของนายวิชัย", owners)


def test_without_people_in_the_index_nobody_is_named(boats):
    assert not names_people("articles by Salton", boats)


def test_they_lead_to_metadata(articles, all_cards):
    found = query_features("articles by Salton", articles, 0.0)
    assert found["people"] == 1.0
    assert HeuristicSelector().select("x", all_cards, features=found).name == "metadata"
    assert query_features("articles by Salton", None, 0.0)["people"] == 0.0


PARTS = st.lists(st.sampled_from(["by", "Salton", "ß", "İ", "written", "โดยนาย", "y", "ﬁ", "or"]), max_size=20)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=()), max_size=300) | PARTS.map(" ".join))
def test_any_text_is_judged(text, articles):
    assert names_people(text, articles) in {True, False}


@pytest.mark.parametrize("unit", ["by ", "written by ", "by Salt", "โดยนาย", "ของนาย ", "what has ", "author"])
def test_no_text_takes_more_than_linear_time(unit, articles):
    query = (unit * 20_000)[:20_000]
    start = time.thread_time()
    names_people(query, articles)
    assert time.thread_time() - start < 0.4


@pytest.mark.shared_data
def test_authors_beyond_the_listed_values_reach_the_metadata_strategy(shared_data, all_cards):
    changed = {}
    for name, total in (("cacm", 52), ("cisi", 76), ("cranfield", 225)):
        folder = shared_data / "collections" / name
        lines = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
        nodes = [ProfiledNode(r["_id"], f"{r['title']}\n{r['text']}", r.get("metadata", {})) for r in lines]
        none = np.zeros((0, 1), np.float32)
        profile = make_profile(nodes, none, name=name, description="", description_vector=none[:, 0], version=1)
        queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
        assert len(queries) == total
        changed[name] = []
        for query in queries:
            found = query_features(query["text"], profile, assess_complexity(query["text"])[1])
            chosen = HeuristicSelector().select(query["text"], all_cards, features=found).name
            if found["people"]:
                changed[name].append((query["_id"], chosen))
    assert changed == {"cacm": [("2", "metadata"), ("61", "metadata")], "cisi": [], "cranfield": []}
