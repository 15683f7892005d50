from __future__ import annotations

import re

import pytest
from answer_nodes import make_node
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import DeadlineExceededError, LLMError, LLMOutputError, SynthesisError
from agentic_retriever.llm import LLMClient
from agentic_retriever.schema import Tier
from agentic_retriever.synthesis import LLMSynthesizer, assemble, check_citations
from agentic_retriever.synthesis.synthesizer import drained
from agentic_retriever.testing.fakes import FakeLLM


def passages(nodes):
    return assemble(nodes, max_chars=10**6)


def check(text: str, nodes, language: str = "en"):
    return check_citations(text, passages(nodes), language=language)


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\[(\d+)\]", text)]


def test_citations_are_renumbered_by_first_use_and_point_into_the_source(handbook):
    cited = check(
        "The budget year begins on 1 October [2]. The daily allowance for meals is EUR 48 in Germany [1].", handbook
    )
    assert cited.text == (
        "The budget year begins on 1 October. [1] The daily allowance for meals is EUR 48 in Germany. [2]"
    )
    first, second = cited.citations
    assert (first.number, first.doc_id, first.quote) == (1, "budget", "The budget year begins on 1 October.")
    assert handbook[1].node.text[first.start - 100 : first.end - 100] == first.quote
    assert (second.number, second.doc_id) == (2, "travel")
    assert cited.support == 1.0


def test_one_stretch_keeps_one_number_and_two_stretches_have_two(handbook):
    cited = check(
        "Receipts are not needed [1]. As said, receipts are not needed [1]. Only the CFO can approve more [1].",
        handbook,
    )
    assert numbers(cited.text) == [1, 1, 2]
    assert [c.quote for c in cited.citations] == ["Receipts are not needed.", "Only the CFO can approve more."]
    assert cited.citations[0].score == 1.0


def test_invented_numbers_disappear(handbook):
    cited = check("Elephants are grey [7]. They eat grass [0][99].", handbook)
    assert cited.text == "Elephants are grey. They eat grass."
    assert cited.citations == ()
    assert cited.support == 0.0


def test_a_missing_marker_is_attached_where_a_passage_supports_the_sentence(handbook):
    cited = check("The daily allowance for meals is EUR 48 in Germany. Elephants never forget.", handbook)
    assert cited.text == "The daily allowance for meals is EUR 48 in Germany. [1] Elephants never forget."
    assert cited.support == 0.5


def test_an_unsupported_sentence_keeps_its_marker_with_a_low_score(handbook):
    cited = check("The daily allowance for meals is EUR 84 in Germany [1].", handbook)
    assert numbers(cited.text) == [1]
    assert cited.citations[0].score <= 0.3
    assert cited.support <= 0.3


def test_a_translated_sentence_keeps_its_citation_with_a_low_score(handbook):
    cited = check("อนุมัติโดยผู้บริหาร [1]", handbook, "th")
    assert numbers(cited.text) == [1]
    (citation,) = cited.citations
    assert citation.quote == "The daily allowance for meals is EUR 48 in Germany."
    assert citation.score < 0.5


def test_layout_of_the_answer_stays(handbook):
    cited = check("Two facts:\n\n- Receipts are not needed [1]\n- Only the CFO can approve more [1]\n", handbook)
    assert cited.text == "Two facts:\n\n- Receipts are not needed [1]\n- Only the CFO can approve more [2]"


def test_thai_answer_with_thai_digits():
    node = make_node("โฉนดเลขที่ 10234\nเนื้อที่ 7 ไร่ 1 งาน\nผู้ถือกรรมสิทธิ์คือนางสาวกานดา", start=0)
    cited = check("ผู้ถือกรรมสิทธิ์คือนางสาวกานดา [๑]", [node], "th")
    assert cited.text == "ผู้ถือกรรมสิทธิ์คือนางสาวกานดา [1]"
    assert cited.citations[0].score == 1.0


_WORDS = [
    "Receipts are not needed", ". ", "1", "\n", "- ", "EUR 48", "。", "| a | b |", "```", "<think>", "\ud800",
    "ไร่ ",
]  # fmt: skip
_MARKS = ["[1]", "[2]", "[3]", "[1, 2]", "[", "]", "【1】", "[๒]", "[[1]2]", "[1[1]]"]
PIECES = st.sampled_from([*_WORDS, *_MARKS])


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=15).map("".join)), st.integers(0, 2))
def test_any_output_is_read_and_every_marker_has_a_citation(text, known):
    texts = ["Receipts are not needed. EUR 48 is paid.", "Budget begins on 1 October."][:known]
    nodes = [make_node(t, start=10 * i, doc_id=str(i)) for i, t in enumerate(texts)]
    cited = check(text, nodes, "und")
    assert [c.number for c in cited.citations] == list(range(1, len(cited.citations) + 1))
    used = numbers(cited.text)
    assert set(used) == {c.number for c in cited.citations}
    assert list(dict.fromkeys(used)) == sorted(set(used))
    for citation in cited.citations:
        i = int(citation.doc_id)
        assert texts[i][citation.start - 10 * i : citation.end - 10 * i] == citation.quote
        assert 0.0 <= citation.score <= 1.0
    assert 0.0 <= cited.support <= 1.0


def synthesizer(replies, **kwargs) -> tuple[LLMSynthesizer, FakeLLM]:
    llm = FakeLLM(replies)
    return LLMSynthesizer(LLMClient(llm, tier=Tier.PRIMARY, timeout_s=5), **kwargs), llm


def test_one_call_with_framed_passages(handbook):
    writer, llm = synthesizer(["Receipts are not needed [1]."], boundary=lambda: "m4rkm4rkm4rk")
    answer = drained(writer.write("Are receipts needed?", passages(handbook), language="en"))
    assert answer.cited.text == "Receipts are not needed. [1]"
    assert answer.reply.text == "Receipts are not needed [1]."
    (prompt,) = llm.prompts
    assert prompt.count("<<m4rkm4rkm4rk") == 6
    assert handbook[0].node.text in prompt
    assert "Source: Travel · 2 > 2.1 · p. 3" in prompt


def test_a_comparison_is_asked_for_in_lines_which_stay_and_are_checked_one_by_one(handbook):
    said = "Meals: EUR 48 a day in Germany [1]\nHotels: up to EUR 500 a night [1]\nMeals need no receipts [1]."
    writer, llm = synthesizer([said])
    answer = drained(writer.write("Compare meals and hotels.", passages(handbook), language="en")).cited
    assert "give each a line that begins with its name" in llm.prompts[0].partition("Compare meals and hotels.")[2]
    assert [line.split(" ")[0] for line in answer.text.split("\n")] == ["Meals:", "Hotels:", "Meals"]
    assert [check.supported for check in answer.checks] == [True, False, True]


def test_the_boundary_is_new_each_time_and_redrawn_when_it_occurs(handbook):
    writer, llm = synthesizer(["x"])
    for _ in range(2):
        drained(writer.write("q", passages(handbook)))
    marks = [re.search(r"<<(\w+) passage 1>>", prompt)[1] for prompt in llm.prompts]
    assert marks[0] != marks[1]

    draws = iter(["aaaaaaaa", "AAAAAAAA", "b3b3b3b3"])
    writer, llm = synthesizer(["x"], boundary=lambda: next(draws))
    drained(writer.write("what is Aaaaaaaaa?", passages(handbook)))
    assert "<<b3b3b3b3 question>>" in llm.prompts[0]

    writer, llm = synthesizer(["x"], boundary=lambda: "aaaaaaaa")
    with pytest.raises(SynthesisError):
        drained(writer.write("aaaaaaaa", passages(handbook)))
    assert llm.prompts == []


@pytest.mark.parametrize(
    "reply", ["NO_ANSWER", " **NO_ANSWER** ", "NO_ANSWER. The passages are about travel.", "no answer"]
)
def test_no_answer_is_recognised(handbook, reply):
    writer, _ = synthesizer([reply])
    assert drained(writer.write("q", passages(handbook))).cited is None


def test_thoughts_are_no_answer(handbook):
    writer, _ = synthesizer(["<think>Maybe [2]?</think>\nReceipts are not needed [1]."])
    assert drained(writer.write("q", passages(handbook))).cited.text == "Receipts are not needed. [1]"
    for thoughts in ("<think>hm</think>  ", "<think>cut off in the middle"):
        writer, _ = synthesizer([thoughts])
        with pytest.raises(LLMOutputError):
            drained(writer.write("q", passages(handbook)))


@pytest.mark.parametrize("raised", [LLMError("down"), DeadlineExceededError("late")])
def test_failures_pass_through(handbook, raised):
    writer, _ = synthesizer([raised])
    with pytest.raises(type(raised)):
        drained(writer.write("q", passages(handbook)))
