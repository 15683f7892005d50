from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilter, MetadataFilters
from question_filters_material import DEEDS, dictionary

from agentic_retriever.filters import matches
from agentic_retriever.understanding.understanding import Clause, relaxed, understand

CALLER = MetadataFilters(
    filters=[MetadataFilter(key="year", value=2550), MetadataFilter(key="year", value=2567)],
    condition=FilterCondition.OR,
)


def clause(at, certainty):
    return Clause(filter=MetadataFilter(key="f", value=str(at)), certainty=certainty, spans=(), say=f"f is {at}")


def test_the_least_certain_goes_first_and_the_callers_filters_stay():
    clauses = [clause(0, 0.5), clause(1, 0.9), clause(2, 0.5)]
    rungs = list(relaxed(clauses, CALLER))
    assert len(rungs) == 8
    assert [rung.dropped for rung in rungs] == [
        (),
        ("f is 2",),
        ("f is 0",),
        ("f is 1",),
        ("f is 2", "f is 0"),
        ("f is 2", "f is 1"),
        ("f is 0", "f is 1"),
        ("f is 2", "f is 0", "f is 1"),
    ]
    assert rungs[-1].filters is CALLER
    assert rungs[1].kept == (clauses[0], clauses[1])


def test_without_clauses_or_with_an_empty_filter_nothing_is_restricted():
    (rung,) = relaxed([])
    assert (rung.filters, rung.dropped) == (None, ())
    rungs = list(relaxed([clause(0, 0.5)], MetadataFilters(filters=[])))
    assert rungs[0].filters is not None
    assert rungs[-1].filters is None


def first_with_deeds(query):
    clauses = understand(query, dictionary(DEEDS)).clauses
    found = next(rung for rung in relaxed(clauses) if any(matches(row, rung.filters) for row in DEEDS))
    return clauses, found


def test_an_impossible_clause_is_given_up():
    assert first_with_deeds("โฉนดในลำพูน ประมาณ 8 ไร่")[1].dropped


def test_an_impossible_clause_goes_alone_however_certain():
    clauses, found = first_with_deeds("โฉนดในเชียงใหม่ หลังปี 2599")
    (dropped,) = found.dropped
    assert "2599" in dropped
    assert len(found.kept) == len(clauses) - 1 >= 1


def test_many_clauses_make_a_short_ladder():
    assert len(list(relaxed([clause(at, 0.5) for at in range(20)]))) == 1 + 20 + 19


@given(
    st.lists(st.floats(0.01, 1.0), max_size=6), st.dictionaries(st.sampled_from(["f", "year"]), st.integers(2550, 2551))
)
def test_rungs_give_up_ever_more_and_are_never_wider_than_the_caller(certainties, metadata):
    row = {"f": "0", **metadata}
    rungs = list(relaxed([clause(at, c) for at, c in enumerate(certainties)], CALLER))
    assert [len(rung.dropped) for rung in rungs] == sorted(len(rung.dropped) for rung in rungs)
    assert matches(row, rungs[-1].filters) == matches(row, CALLER)
    assert matches(row, CALLER) or not any(matches(row, rung.filters) for rung in rungs)
    assert all(len(rung.kept) + len(rung.dropped) == len(certainties) for rung in rungs)
