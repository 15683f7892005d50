from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.text.tokens import absent, identifiers, kind_of, numbers, without_asking, without_requests


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("How do I set the alarm on the NS-7 mast?", ["ns7"]),
        ("what does E17 mean on the AQ-12", ["e17", "aq12"]),
        ("serial numbers from 3A-20000 on", ["3a20000"]),
        ("¿Qué dice el Artículo 57?", ["artículo 57"]),
        ("importe de la tasa T-06", ["t06"]),
        ("โฉนดเลขที่ 10234 ใครเป็นเจ้าของ", ["เลขที่ 10234"]),
        ("โฉนดเลขที่10234", ["เลขที่ 10234"]),
        ("น.ส.3ก คืออะไร", ["นส3ก"]),
        ("ค่าธรรมเนียมรหัส ธน-06 คือ", ["ธน06"]),
        ("ส.ป.ก.4-01 ในนครราชสีมา", ["สปก401"]),
        ("เลขที่ ๑๐๒๓๔", ["เลขที่ 10234"]),
        ("article 6.2.3, article 6.2.3", ["article 6.2.3"]),
        ("in 2024 it cost 60,000 euro for 20 people, 15 minutes each", []),
        ("the 10th of May and a 15-minute break", []),
        ("", []),
    ],
)
def test_finds_what_names_one_thing(text, found):
    assert identifiers(text) == found


def test_a_code_that_touches_words_without_spaces_is_left_alone():
    assert identifiers("ค่าธรรมเนียมรหัสธน-06") == []


def test_numbers_that_stand_alone():
    assert numbers("12345 in 2024, 1,234 and 6.2.3 or 3.5") == ["12345", "2024", "6.2.3"]


def test_kinds():
    assert kind_of("ns3") == kind_of("e42") == "a9"
    assert kind_of("artículo 57") == kind_of("artículo 17") != kind_of("anexo 3")
    assert kind_of("3a20000") == "9a9"


KNOWN = {"a9": frozenset({"ns3", "ns5", "aq12"}), "article 9": frozenset({"article 1"}), "9": frozenset({"2024"})}


def test_absent_only_where_the_kind_is_known():
    assert absent(["ns7", "ns3"], KNOWN) == ["ns7"]
    assert absent(["article 2"], KNOWN) == []
    assert absent(["article 2"], KNOWN, least=1) == ["article 2"]
    assert absent(["9a9b"], KNOWN) == []
    assert absent(["ns7"], {}) == []


def test_a_numbered_thing_counts_as_known_where_its_number_stands_alone():
    known = {"section 9": frozenset({"section 1.1", "section 1.2", "section 1.3"}), "9.9.9": frozenset({"6.2.3"})}
    assert absent(["section 6.2.3"], known) == []
    assert absent(["section 6.2.4"], known) == ["section 6.2.4"]


@given(st.text(st.characters(exclude_categories=()), max_size=400))
def test_any_text_is_searched(text):
    for name in identifiers(text) + numbers(text):
        assert 0 < len(name) <= 80
        assert any(char.isdigit() for char in name)
    without_asking(text)
    without_requests(text)


@given(st.lists(st.sampled_from(["ns3", "ns7", "e1", "article 4", "4.4.4", "x"]), max_size=6))
def test_what_is_known_is_never_absent(wanted):
    known: dict[str, set[str]] = {}
    for name in ["ns3", "e1", "a2", "article 4", "article 5", "article 6"]:
        known.setdefault(kind_of(name), set()).add(name)
    frozen = {kind: frozenset(names) for kind, names in known.items()}
    assert set(absent(wanted, frozen)) <= {"ns7"}
    assert ("ns7" in absent(wanted, frozen)) == ("ns7" in wanted)


def test_requests_leave_what_they_are_about():
    assert without_requests("give me an overview of the hedging policy").split() == ["the", "hedging", "policy"]
    assert without_requests("Resume el régimen de sanciones").split() == ["el", "régimen", "de", "sanciones"]
    assert without_asking("น.ส.3ก คืออะไร").strip() == "น.ส.3ก"


@pytest.mark.parametrize("piece", ["a", "a-", "1.", "ก", "ก.", "a1", "9", "article "])
def test_long_runs_are_no_trap(piece):
    text = piece * 100_000
    assert identifiers(text) is not None
    assert numbers(text) is not None
