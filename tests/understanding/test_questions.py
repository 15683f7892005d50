from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.vector_stores.types import MetadataFilters
from question_filters_material import DEEDS, GOODS, PAPERS, dictionary, said, selected

from agentic_retriever.filters import check_filters
from agentic_retriever.text.language_files import section
from agentic_retriever.understanding.fields import fold_query, folded, phrases
from agentic_retriever.understanding.understanding import understand

DEED_FIELDS = dictionary(DEEDS)
GOODS_FIELDS = dictionary(GOODS)
PAPER_FIELDS = dictionary(PAPERS)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("between 5 and 10 rai", "area_rai is from 5 to 10"),
        ("5-10 rai", "area_rai is from 5 to 10"),
        ("plots of 5–10rai", "area_rai is from 5 to 10"),
        ("from 5 to 10 rai", "area_rai is from 5 to 10"),
        ("de 5 a 10 rai", "area_rai is from 5 to 10"),
        ("entre 5 y 10 rai", "area_rai is from 5 to 10"),
        ("5 ถึง 10 ไร่", "area_rai is from 5 to 10"),
        ("๕ ถึง ๑๐ ไร่", "area_rai is from 5 to 10"),
        ("ระหว่าง 5 และ 10 ไร่", "area_rai is from 5 to 10"),
        ("over 20 rai", "area_rai is above 20"),
        ("under 20 rai", "area_rai is below 20"),
        ("at least five rai", "area_rai is at least 5"),
        ("at most 5 rai", "area_rai is at most 5"),
        ("no more than 5 rai", "area_rai is at most 5"),
        ("not less than 5 rai", "area_rai is at least 5"),
        ("up to 1,000 rai", "area_rai is at most 1000"),
        ("10 rai or more", "area_rai is at least 10"),
        ("about 10 rai", "area_rai is from 9 to 11"),
        ("area over 12", "area_rai is above 12"),
        ("area > 12", "area_rai is above 12"),
        ("más de 20 rai", "area_rai is above 20"),
        ("menos de 20 rai", "area_rai is below 20"),
        ("al menos 20 rai", "area_rai is at least 20"),
        ("hasta 20 rai", "area_rai is at most 20"),
        ("มากกว่า 20 ไร่", "area_rai is above 20"),
        ("ไม่เกิน 3 ไร่", "area_rai is at most 3"),
        ("ไม่น้อยกว่า 3 ไร่", "area_rai is at least 3"),
        ("น้อยกว่า 3 ไร่", "area_rai is below 3"),
        ("ตั้งแต่ 10 ไร่ขึ้นไป", "area_rai is at least 10"),
        ("เกิน 5 ไร่ 2 งาน", "area_rai is above 5.5"),
        ("more than 3 ha", "area_rai is above 18.75"),
        ("พื้นที่ 5", "area_rai is 5"),
        ("หลังปี 2560", "year is above 2560"),
        ("ก่อนปี 2540", "year is below 2540"),
        ("ในปี 2550", "year is 2550"),
        ("ปี พ.ศ. ๒๕๕๐", "year is 2550"),
        ("ค.ศ. 2017", "year is 2560"),
        ("since 2010", "year is at least 2553"),
        ("in 1990", "year is 2533"),
        ("in the 1990s", "year is from 2533 to 2542"),
        ("ตั้งแต่ปี 2550 ถึง 2560", "year is from 2550 to 2560"),
        ("ปี 2550 และ 2555", "year is one of 2550, 2555"),
        ("ไม่อยู่ในเชียงใหม่", "province is not เชียงใหม่"),
        ("ยกเว้นลำพูน", "province is not ลำพูน"),
        ("ไม่ใช่โฉนด", "deed_type is not โฉนด"),
        ("not in เชียงใหม่ or ลำพูน", "province is none of เชียงใหม่, ลำพูน"),
        ("โฉนดหรือ น.ส.3ก", "deed_type is one of โฉนด, น.ส.3ก"),
        ("นส3ก", "deed_type is น.ส.3ก"),
        ("น.ส. 3 ก", "deed_type is น.ส.3ก"),
        ("น.ส.3", "deed_type is น.ส.3"),
        ("อำเภอระยอง", "district is ระยอง"),
        ("จังหวัดระยอง", "province is ระยอง"),
        ("ระยอง", "province is ระยอง or district is ระยอง"),
        ("ที่ดินในเมืองลำพูน", "district is เมืองลำพูน"),
        ("เชียงใหม่หรือโฉนด", "province is เชียงใหม่ or deed_type is โฉนด"),
    ],
)
def test_one_restriction_on_deeds(query, expected):
    assert said(understand(query, DEED_FIELDS)) == [expected]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("reports in malaga", ["kind is report", "city is Málaga"]),
        ("POLICIES", ["kind is policy"]),
        ("más de 1.500 m2", ["area_m2 is above 1500"]),
        ("entre 5 y 10 metros", ["length_m is from 5 to 10"]),
        ("less than 300 cm", ["length_m is below 3"]),
        ("que no sean de Madrid", ["city is not Madrid"]),
        ("excepto Madrid y Málaga", ["city is none of Madrid, Málaga"]),
        ("except Madrid", ["city is not Madrid"]),
        ("Madrid and Chiang Mai", ["city is one of Madrid, Chiang Mai"]),
        ("hasta 2 mil euros", ["price_eur is at most 2000"]),
        ("under €500", ["price_eur is below 500"]),
        ("price under 500", ["price_eur is below 500"]),
        ("over 50 pages", ["pages is above 50"]),
        ("not irrigated", ["irrigated is false"]),
        ("irrigated fields", ["irrigated is true"]),
        ("code IT", ["code is IT"]),
        ("informes desde 2019", ["issued is at least 2019-01-01"]),
        ("antes del 5 de mayo de 2021", ["issued is below 2021-05-05"]),
        ("en mayo de 2021", ["issued is from 2021-05-01 to 2021-05-31"]),
        ("on 2021-07-01", ["issued is from 2021-07-01 to 2021-07-01"]),
        ("after July 2021", ["issued is above 2021-07-31"]),
        ("July 5, 2021", ["issued is from 2021-07-05 to 2021-07-05"]),
        ("วันที่ 9 มกราคม 2564", ["issued is from 2021-01-09 to 2021-01-09"]),
        ("between 2019 and 2021", ["issued is from 2019-01-01 to 2021-12-31"]),
        ("not in 2021", ["not: issued is from 2021-01-01 to 2021-12-31"]),
    ],
)
def test_restrictions_on_goods(query, expected):
    assert said(understand(query, GOODS_FIELDS)) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("หลังปี 2560", ["year is above 2017"]),
        ("before 2020", ["year is below 2020"]),
        ("published in 2021", ["year is 2021"]),
        ("informes de 2021", ["year is 2021"]),
        ("in the 1960s", ["year is from 1960 to 1969"]),
        ("década de los 60", ["year is from 1960 to 1969"]),
        ("from 1990 on", ["year is at least 1990"]),
        ("2010 or later", ["year is at least 2010"]),
        ("years 1990, 1991 and 1995", ["year is one of 1990, 1991, 1995"]),
        ("not in 1990", ["year is not 1990"]),
        ("the 1990 memo", ["year is 1990", "kind is memo"]),
        ("after 5 May 1990", ["year is at least 1990"]),  # what is left of 1990 stays in
        ("keyword text", ["keywords is text"]),
        ("by perlis", ["authors is Perlis, A. J."]),
        ("papers by Samelson or Udo Pooch about paging", ["authors is one of Samelson,K., Pooch, U.W."]),
        ("written by Thacher", ["authors is Thacher Jr., H. C."]),
        ("by Knuth", ["authors is one of Knuth, D. E., Knuth, J."]),
        ("by Donald Knuth", ["authors is Knuth, D. E."]),
        ("by D. E. Knuth", ["authors is Knuth, D. E."]),
        ("Knuth, J.", ["authors is Knuth, J."]),
        ("por Prof. Knuth", ["authors is one of Knuth, D. E., Knuth, J."]),
    ],
)
def test_restrictions_on_papers(query, expected):
    assert [clause.say for clause in understand(query, PAPER_FIELDS).at_least(0.5)] == expected


@pytest.mark.parametrize(
    "query",
    ["", "no", "บ้านเลขที่ 5", "5", "2560", "10 apples and 1990 pears", "พื้นที่", "more than ever", "น.ส.30", "แม่ริมี่"],
)
def test_no_restriction_on_deeds(query):
    assert understand(query, DEED_FIELDS).clauses == ()


# IT is a value, "it" is not; 5/6 is in May or June; there are no stones, free subject words are no restriction and
# John Perlis is somebody else.
@pytest.mark.parametrize("query", ["is it so", "XNS-3", "NS-31", "Madridista", "5/6/2021", "2 stones"])
def test_no_restriction_on_goods(query):
    assert understand(query, GOODS_FIELDS, language="en").clauses == ()


@pytest.mark.parametrize(
    "query",
    [
        *("text about sorting", "1990", "in 2500 words", "papers from Perlis or others"),
        *("John Perlis's ideas", "perlis", "over 2000"),
    ],
)
def test_no_restriction_on_papers(query):
    assert [say for say in said(understand(query, PAPER_FIELDS, language="en")) if not say.startswith("kind")] == []


def test_the_clauses_of_one_question_leave_what_satisfies_all():
    understood = understand("ที่ดินในเชียงใหม่ โฉนด พื้นที่ 5 ถึง 10 ไร่", DEED_FIELDS)
    assert said(understood) == ["province is เชียงใหม่", "deed_type is โฉนด", "area_rai is from 5 to 10"]
    assert selected(understood, DEEDS) == [0]


def test_a_clause_tells_where_it_stands():
    query = "Reports  about   MÁLAGA, más de 10 m2"
    for clause in understand(query, GOODS_FIELDS, language="es").clauses:
        assert all(0 <= start < end <= len(query) for start, end in clause.spans)
    (city,) = [one for one in understand(query, GOODS_FIELDS).clauses if "city" in one.say]
    assert [query[start:end] for start, end in city.spans] == ["MÁLAGA"]


def test_two_ends_of_a_range_are_two_clauses():
    understood = understand("more than 5 and less than 10 rai", DEED_FIELDS)
    assert said(understood) == ["area_rai is above 5", "area_rai is below 10"]
    assert selected(understood, DEEDS) == [0, 1]


def test_a_named_field_is_surer_than_a_bare_value_and_that_than_a_common_word():
    def certainty(query, fields):
        (clause,) = understand(query, fields).clauses
        return clause.certainty

    named, bare = certainty("จังหวัดลำพูน", DEED_FIELDS), certainty("ในลำพูน", DEED_FIELDS)
    assert named > bare > certainty("ระยอง", DEED_FIELDS)
    assert certainty("ลำพูน คืออะไร", DEED_FIELDS) < bare
    assert certainty("some text here", GOODS_FIELDS) < 0.5
    assert certainty("Perlis, A. J.", PAPER_FIELDS) > certainty("by Perlis", PAPER_FIELDS)


def test_an_unsure_value_does_not_widen_a_sure_one_unless_or_vouches_for_it():
    assert said(understand("a report that is a text book", GOODS_FIELDS)) == ["kind is report"]
    assert said(understand("a report or text", GOODS_FIELDS)) == ["kind is one of report, text"]


def test_several_fields_of_one_unit_need_a_name():
    rows = [{"width_m": 3, "height_m": 5}, {"width_m": 30, "height_m": 50}]
    fields = dictionary(rows)
    assert understand("more than 4 m", fields).clauses == ()
    assert said(understand("height more than 4 m", fields)) == ["height_m is above 4"]
    assert said(understand("anchura de más de 4 metros", fields)) == ["width_m is above 4"]


def test_years_kept_as_text_stay_text():
    rows = [{"year": "2019"}, {"year": "2021"}]
    understood = understand("since 2020", dictionary(rows))
    assert selected(understood, rows) == [1]


# --- questions of any kind ------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [
        *sorted(phrases()),
        *(str(value) for row in (*DEEDS, *GOODS, *PAPERS) for value in row.values()),
        *("1990", "2560", "5", "10.5", "-", ",", '"'),
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


@pytest.mark.parametrize(
    ("text", "times"),
    [("in 2019 or , by Perlis ", 5_000), ("Perlis A. ", 9_000), ("5 ไร่ 2 งาน ", 5_000), ("ก", 90_000), ("(", 90_000)],
)
def test_a_long_text_takes_no_longer_than_its_examined_part(text, times):
    began = time.perf_counter()
    understand(text * times, ALL, language="en")
    assert time.perf_counter() - began < 2.0


def test_every_language_describes_the_same():
    tables = section("filters")
    kinds = [set(table["cues"]) - {"either"} for table in tables.values()]
    assert all(one == kinds[0] for one in kinds)
    assert all(set(table) == set(tables["en"]) for table in tables.values())
