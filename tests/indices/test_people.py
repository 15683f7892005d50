from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.indices.profile import (
    MAX_NAME_WORDS,
    IndexProfile,
    ProfiledNode,
    collect_people,
    make_profile,
    name_words,
)


def people(*metadata: dict) -> dict[str, frozenset[str]]:
    return collect_people([ProfiledNode(str(at), "text", row) for at, row in enumerate(metadata)])


def test_fields_are_known_by_their_name():
    found = people({"authors": ["Pooch, U. W.", "Núñez, J."], "bookAuthor": "Ada Byron", "team": "red"})
    assert found == {"authors": frozenset({"pooch", "nunez"}), "bookAuthor": frozenset({"ada", "byron"})}


def test_fields_are_known_by_the_form_of_their_values():
    listed = [{"by": f"{name}, A. B."} for name in ("Wells", "Ferri", "Lance", "Stein")]
    assert people(*listed) == {"by": frozenset({"wells", "ferri", "lance", "stein"})}
    assert people(*listed[:2]) == {}
    assert people({"place": "Leeds"}, {"place": "New York, USA 12"}, {"place": "Rome"}) == {}


def test_names_with_marks_stay_whole():
    assert name_words("นายสมชาย แก้วไพรสณฑ์") == ["นายสมชาย", "แก้วไพรสณฑ์"]
    assert name_words("O'Brien, J. van der Meer-Lund") == ["o'brien", "van", "der", "meer-lund"]


def test_many_names_are_cut():
    letters = "abcdefghijklmnopqrst"
    rows = [{"author": f"n{a}{b}{c}"} for a in letters for b in letters for c in letters]
    assert len(people(*rows)["author"]) == MAX_NAME_WORDS


def test_a_profile_keeps_them(tmp_path):
    none = np.zeros((0, 1), np.float32)
    nodes = [ProfiledNode("a", "text", {"authors": ["Pooch, U. W."]})]
    made = make_profile(nodes, none, name="x", description="", description_vector=none[:, 0], version=1)
    made.save(tmp_path)
    loaded = IndexProfile.load(tmp_path, version=1, description="")
    assert loaded is not None
    assert loaded.people == made.people == {"authors": frozenset({"pooch"})}


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["author", "x"]), st.text() | st.lists(st.text() | st.integers()) | st.none() | st.floats()
        )
    )
)
def test_any_metadata_gives_words(rows):
    for words in people(*rows).values():
        assert all(len(word) >= 3 and word == word.casefold() for word in words)


@pytest.mark.parametrize("value", ["", "x" * 81, 7, None, True, {"a": 1}])
def test_what_is_no_short_text_is_left_out(value):
    assert people({"author": value}) == {}
