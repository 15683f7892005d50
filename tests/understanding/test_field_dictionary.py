from __future__ import annotations

import datetime as dt
import math
import time

import pytest
from question_filters_material import DEEDS, GOODS, PAPERS, dictionary, said

from agentic_retriever.understanding.fields import FieldDictionary, FieldKind, PersonName, is_listed_form, parse_listed
from agentic_retriever.understanding.understanding import understand


def test_kinds_ranges_and_units_come_from_the_metadata():
    fields = dictionary(GOODS).fields
    kinds = {name: info.kind for name, info in fields.items()}
    assert kinds["issued"] is FieldKind.DATE
    assert kinds["irrigated"] is FieldKind.BOOL
    assert kinds["code"] is FieldKind.KEYWORD
    assert (fields["price_eur"].kind, fields["price_eur"].unit) == (FieldKind.NUMBER, "eur")
    assert (fields["price_eur"].low, fields["price_eur"].high) == (10.5, 5000.5)
    assert (fields["issued"].low, fields["issued"].high) == (2019, 2023)
    assert fields["pages"].unit is None
    assert "ไร่" not in fields


def test_originals_are_kept_whatever_their_case():
    fields = dictionary([{"city": "Lima"}, {"city": "LIMA"}, {"city": "lima"}, {"city": "LIMA"}])
    assert fields.fields["city"].values["lima"][0] == "LIMA"  # the commonest first
    assert sorted(fields.fields["city"].values["lima"]) == ["LIMA", "Lima", "lima"]


def test_people_and_topics_are_told_apart():
    many = [
        {"tags": [f"word {at}", f"other {at}"], "who": f"Last{'abcdefghij'[at % 10]}, A.", "few": at % 3}
        for at in range(60)
    ]
    fields = dictionary([*PAPERS, *many]).fields
    assert fields["authors"].person
    assert not fields["authors"].topical
    assert fields["who"].person  # by the form of its values
    assert fields["keywords"].topical
    assert fields["tags"].topical
    assert fields["year"].year


def test_fields_that_ingestion_sets_are_left_out():
    assert set(dictionary([{"title": "x", "page": 3, "kind": "y"}]).fields) == {"kind"}


def test_values_are_capped(monkeypatch):
    monkeypatch.setattr("agentic_retriever.understanding.fields._MAX_VALUES", 4)
    assert len(dictionary([{"a": f"v{at:03}"} for at in range(10)]).fields["a"].values) == 4


def test_odd_metadata_is_no_trouble():
    rows = [
        {"": "x", " ": "y", "k" * 300: "z", "bad\ud800": "w", "v": "\ud800", "n": math.nan, "i": 10**400, "l": []},
        {"n": math.inf, "d": dt.date(2020, 1, 1), "o": object(), "m": {"a": 1}, "mixed": [1, "one", 2], "none": None},
    ]
    fields = dictionary(rows).fields
    assert fields["d"].kind is FieldKind.DATE
    assert fields["mixed"].kind is FieldKind.NUMBER
    assert set(fields) <= {"v", "d", "mixed"}


def test_a_unit_comes_from_the_name_of_a_field():
    assert understand("more than 5 ha", dictionary([{"size": 3.0}, {"size": 30.0}])).clauses == ()
    assert said(understand("more than 5 ha", dictionary([{"size_ha": 3.0}]))) == ["size_ha is above 5"]


def test_an_index_without_metadata_understands_nothing():
    assert understand("deeds in Lima since 2019", FieldDictionary.build([])).clauses == ()


def test_fields_cannot_be_changed():
    with pytest.raises(TypeError):
        dictionary(DEEDS).fields["x"] = None


@pytest.mark.parametrize(
    ("name", "family", "given"),
    [
        ("Pooch, U. W.", "pooch", ("u", "w")),
        ("wells,w.r.", "wells", ("w", "r")),
        ("Nguyen, Van-An", "nguyen", ("van-an",)),
        ("Smith, J.-P.", "smith", ("j", "p")),
        ("O'Neil, Mary Ann", "o'neil", ("mary", "ann")),
        ("Ludwig van Beethoven", "van beethoven", ("ludwig",)),
        ("J.R.R. Tolkien", "tolkien", ("j", "r", "r")),
    ],
)
def test_names_are_taken_apart(name, family, given):
    assert parse_listed(name) == PersonName(family, given)


@pytest.mark.parametrize("text", ["j. ae. scs. 25, 1958, 324.", "Smith, J. and others, 1958", "Smith, ", "a", ""])
def test_what_is_no_name_is_refused(text):
    assert not is_listed_form(text)


@pytest.mark.parametrize(
    "text",
    [
        "Smith, " + "abcdefgh" * 9 + "!",
        "Smith, " + "ab-" * 24 + "!",
        "naca wr, " + "a b" * 23 + ",",
        "a" * 79 + "!",
        "Ab-" * 26 + "!",
        "A." * 39 + "!",
    ],
)
def test_long_values_are_refused_at_once(text):
    start = time.perf_counter()
    for _ in range(20):
        assert not is_listed_form(text)
        assert parse_listed(text) is None
    # With a pattern that tries every way to cut the text, one of these took minutes.
    assert time.perf_counter() - start < 1.0
