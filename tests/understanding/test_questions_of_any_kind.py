from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.vector_stores.types import MetadataFilters
from question_filters_material import DEEDS, GOODS, PAPERS, dictionary, selected

from agentic_retriever.filters import check_filters
from agentic_retriever.understanding.understanding import understand
from agentic_retriever.understanding.words import fold_query, folded, phrases, tables

WORDS = st.sampled_from(
    [
        *sorted(phrases()),
        *(str(v) for row in (*DEEDS, *GOODS, *PAPERS) for v in row.values()),
        "1990",
        "2560",
        "5",
        "10.5",
        "-",
        ",",
        '"',
    ]
)
TEXTS = st.one_of(
    st.text(max_size=80), st.lists(WORDS, max_size=14).map(" ".join), st.lists(WORDS, max_size=8).map("".join)
)
ALL = dictionary([*DEEDS, *GOODS, *PAPERS])


@settings(max_examples=400, deadline=None)
@given(TEXTS, st.sampled_from([None, "en", "es", "th", "xx", ""]))
def test_any_text_is_understood_without_error_and_within_the_known_fields(query, language):
    understood = understand(query, ALL, language=language)
    for clause in understood.clauses:
        check_filters(MetadataFilters(filters=[clause.filter]), known_fields=ALL.fields)
        assert 0 < clause.certainty <= 1
        assert clause.say
        assert clause.spans
        assert all(0 <= start < end <= len(query) for start, end in clause.spans)
    assert understood == understand(query, ALL, language=language)


@settings(max_examples=200)
@given(st.text(max_size=40))
def test_folding_a_question_gives_what_folding_a_value_gives(text):
    question = fold_query(text)
    assert question.text.strip() == folded(text)
    assert len(question.text) == len(question.starts) == len(question.ends)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(range(3)),
    st.sampled_from(["province", "district", "deed_type"]),
    st.sampled_from(["", "ที่ดิน ", "x "]),
)
def test_a_stored_value_is_found_wherever_it_stands(at, field, before):
    value = DEEDS[at][field]
    assert at in selected(understand(f"{before}{value} ครับ", dictionary(DEEDS)), DEEDS)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 400), st.integers(0, 400))
def test_ranges_select_what_plain_comparison_selects(first, second):
    rows = [{"area_rai": at / 4} for at in range(0, 400, 7)]
    low, high = sorted((first, second))
    understood = understand(f"between {low} and {high} rai", dictionary(rows), language="en")
    assert selected(understood, rows) == [at for at, row in enumerate(rows) if low <= row["area_rai"] <= high]


def test_a_long_text_takes_no_longer_than_its_examined_part():
    for text in (
        "in 2019 or , by Perlis " * 5_000,
        "Perlis A. " * 9_000,
        "5 ไร่ 2 งาน " * 5_000,
        "ก" * 90_000,
        "(" * 90_000,
    ):
        began = time.perf_counter()
        understand(text, ALL, language="en")
        assert time.perf_counter() - began < 2.0


def test_every_language_describes_the_same():
    kinds = [set(table["cues"]) - {"either"} for table in tables().values()]
    assert all(one == kinds[0] for one in kinds)
    assert all(set(table) == set(tables()["en"]) for table in tables().values())
