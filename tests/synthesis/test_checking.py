from __future__ import annotations

import re
import time

import pytest
from answer_nodes import chunked, make_node
from citation_material import INVENTED
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.schema import SentenceCheck
from agentic_retriever.synthesis import ExtractiveSynthesizer, assemble, check_citations
from agentic_retriever.synthesis.checking import UNSUPPORTED_MARK
from agentic_retriever.synthesis.extractive import quoted_checks

FACT = "The daily allowance for meals is EUR 48 in Germany."
FALSE = "The daily allowance for meals is EUR 84 in Germany."
NOISE = "Elephants never forget their caretakers."


def check(text: str, nodes, language: str = "en", **kwargs):
    return check_citations(text, assemble(nodes, max_chars=10**6), language=language, **kwargs)


def test_each_sentence_gets_a_check_with_its_place_its_citations_and_its_problems(handbook):
    cited = check(f"{FACT} [1] {FALSE} [1] {NOISE}", handbook)
    good, wrong, lost = cited.checks
    assert [cited.text[c.start : c.end] for c in cited.checks] == [c.text for c in cited.checks] == [FACT, FALSE, NOISE]
    assert (good.supported, good.score, good.citations, good.problems) == (True, 1.0, (1,), ())
    assert (wrong.supported, wrong.citations, wrong.problems) == (False, (1,), ("number 84 is not in the source",))
    assert (lost.supported, lost.score, lost.citations) == (False, 0.0, ())
    assert lost.problems == ("no passage supports it",)
    assert cited.support == pytest.approx((1.0 + wrong.score) / 3)


def test_unsupported_sentences_can_be_marked_in_the_text(handbook):
    cited = check(f"{FACT} [1] {FALSE} [1] {NOISE}", handbook, unsupported="mark")
    assert cited.text == f"{FACT} [1] {FALSE} [1][?] {NOISE} [?]"
    assert [cited.text[c.start : c.end] for c in cited.checks] == [FACT, FALSE, NOISE]


def test_unsupported_sentences_can_be_left_out_with_their_citations(handbook):
    cited = check(
        f"{FALSE} [1]\n\n{FACT} [1] {NOISE} [2] Only the CFO can approve more. [1]", handbook, unsupported="drop"
    )
    assert cited.text == f"{FACT} [1] Only the CFO can approve more. [2]"
    assert [c.number for c in cited.citations] == [1, 2]
    assert [c.supported for c in cited.checks] == [False, True, False, True]
    assert [c.text for c in cited.checks] == [FALSE, FACT, NOISE, "Only the CFO can approve more."]
    assert [c.start == c.end for c in cited.checks] == [True, False, True, False]
    assert [cited.text[c.start : c.end] for c in cited.checks if c.supported] == [
        FACT,
        "Only the CFO can approve more.",
    ]


def test_when_everything_is_left_out_nothing_is_said(handbook):
    cited = check(f"As the passages say:\n\n- {NOISE} [1]\n- {FALSE} [2]", handbook, unsupported="drop")
    assert (cited.text, cited.citations) == ("", ())
    assert len(cited.checks) == 2


def test_a_mark_that_the_model_wrote_is_no_mark_of_ours(handbook):
    for text in (f"{FACT} [?] [1]", f"{FACT} [[?]?] [1]", f"[[[[?]?]?]?]{FACT} [1]"):
        assert UNSUPPORTED_MARK not in check(text, handbook, unsupported="mark").text


def test_a_wrong_number_is_put_right_when_another_passage_has_the_sentence(handbook):
    cited = check(f"{FACT} [2]", handbook)
    assert cited.text == f"{FACT} [1]"
    assert cited.citations[0].doc_id == "travel"
    assert cited.checks[0].supported
    assert cited.checks[0].problems == ("cited passage 2, found elsewhere",)


def test_an_added_marker_is_told(handbook):
    assert check(FACT, handbook).checks[0].problems == ("no passage was cited, one was found",)


def test_two_markers_can_support_a_sentence_together(handbook):
    cited = check("The budget year begins on 1 October, and receipts are not needed [2][1].", handbook)
    assert cited.checks[0].supported
    assert cited.checks[0].citations == (1, 2)
    assert {c.doc_id for c in cited.citations} == {"travel", "budget"}


def test_headings_of_lists_are_not_judged(handbook):
    cited = check("Two facts:\n\n- Receipts are not needed [1]\n- Only the CFO can approve more [1]\n", handbook)
    assert [c.text for c in cited.checks] == ["- Receipts are not needed", "- Only the CFO can approve more"]
    assert cited.support == 1.0


def test_a_marker_at_the_end_of_a_thai_line_stands_for_its_clauses():
    text = "โฉนดเลขที่ 10234 เนื้อที่ 7 ไร่ 1 งาน 0 ตารางวา ตั้งอยู่ตำบลริมใต้ อำเภอแม่ริม จังหวัดเชียงใหม่ ซึ่งปลูกลำไยไว้ 120 ต้น"
    cited = check(f"{text} [1]", [make_node(f"ทะเบียน\n{text}\nอื่นๆ", start=0)], "th")
    assert all(c.supported and c.citations for c in cited.checks)


def test_a_long_answer_is_checked_in_part_and_says_so(handbook):
    cited = check(f"{FACT} [1]\n" * 70, handbook)
    assert sum(c.supported for c in cited.checks) == 60
    assert cited.checks[-1].problems == ("not checked: the answer is too long",)


def test_checks_turn_into_json_and_back(handbook):
    for one in check(f"{FACT} {FALSE} [1]", handbook).checks:
        assert SentenceCheck.from_dict(one.to_dict()) == one


def test_an_extract_passes_its_own_check():
    source = "# Pumps\n\nThe pump needs 5 litres [3] of oil.  It is\nblue. | a | b |\n\nThe tank holds 90 litres."
    found = ExtractiveSynthesizer().extract("pump oil litres tank", assemble(chunked(source, [40]), max_chars=9_999))
    checks = quoted_checks(found.text, found.citations)
    assert checks
    assert all(c.supported and c.score == 1.0 and found.text[c.start : c.end] == c.text for c in checks)
    forged = quoted_checks(found.text.replace("litres", "gallons"), found.citations)
    assert not all(c.supported for c in forged)


_PIECES = st.sampled_from(
    [
        FACT, FALSE, NOISE, "Receipts are not needed", ". ", "\n", "  \n\n", "- ", "EUR 48", "。", "| a | b |",
        "ไร่ ", "Two:", "[1]", "[2]", "[3]", "[1, 2]", "[", "]", "?", "[?]", "【1】", "[๒]", "[[1]2]", "�", "\u2028",
        "ǅ", "ﬁ",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(st.text(max_size=200), st.lists(_PIECES, max_size=15).map("".join)),
    st.integers(0, 2),
    st.sampled_from(["flag", "mark", "drop"]),
)
def test_whatever_the_text_checks_and_citations_hold_together(text, known, policy):
    texts = [f"Receipts are not needed. {FACT}", "Budget begins on 1 October."][:known]
    nodes = [make_node(t, start=10 * i, doc_id=str(i)) for i, t in enumerate(texts)]
    cited = check(text, nodes, "en", unsupported=policy)
    used = [int(n) for n in re.findall(r"\[(\d+)\]", cited.text)]
    assert set(used) == {c.number for c in cited.citations}
    assert set(used) == {n for one in cited.checks for n in one.citations}
    for citation in cited.citations:
        i = int(citation.doc_id)
        assert texts[i][citation.start - 10 * i : citation.end - 10 * i] == citation.quote
    at = 0
    for one in cited.checks:
        assert at <= one.start <= one.end <= len(cited.text)
        at = one.end
        left_out = policy == "drop" and not one.supported
        assert (one.start == one.end) is left_out
        assert left_out or cited.text[one.start : one.end] == one.text
        assert one.supported or one.problems
        assert not one.supported or one.citations
    unsupported = sum(not one.supported for one in cited.checks)
    assert cited.text.count(UNSUPPORTED_MARK) == (unsupported if policy == "mark" else 0)
    assert cited.text == cited.text.strip()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([FACT, FALSE, NOISE, "It costs EUR 12.", "Ask Bob Miller."]), max_size=6))
def test_what_is_left_after_dropping_would_be_kept_again(parts):
    nodes = [make_node(f"# Meals\n\n{FACT} It costs EUR 12.", start=0)]
    first = check(" ".join(parts), nodes, unsupported="drop")
    again = check(first.text, nodes, unsupported="drop")
    assert again.text == first.text
    assert again.citations == first.citations


_HOSTILE = [
    "a", "1", "1.", "not ", "ไม่", "Aa Bb ", "4 March 2021 ", "It is not 5. ", "It is 5 [1][2]. ", "[?", "[", " ",
]  # fmt: skip
_HOSTILE += ["สิบ", "นายกขค", "中文", "1 mil ", "A.B.", "no más ", "“", "\n", "- a\n", "|", "EUR "]


@pytest.mark.parametrize("piece", _HOSTILE)
def test_hostile_answers_and_passages_are_checked_in_bounded_time(piece):
    text = (piece * 20_000)[:20_000]
    nodes = [make_node((other * 2_000)[:2_000], start=0, doc_id=str(i)) for i, other in enumerate(_HOSTILE[:7])]
    nodes.append(make_node(text[:2_000], start=0, doc_id="same"))
    started = time.process_time()
    check(text, nodes)
    assert time.process_time() - started < 8


def test_an_ordinary_answer_takes_no_time(handbook):
    nodes = [make_node((f"{FACT} Receipts are not needed. " * 30)[:2_000], start=0, doc_id=str(i)) for i in range(8)]
    text = " ".join(f"{sentence} [{i + 1}]" for i, sentence in enumerate(INVENTED["en"][:5]))
    started = time.process_time()
    check(text, [*handbook, *nodes])
    assert time.process_time() - started < 0.5
