from __future__ import annotations

import pytest
from answer_nodes import make_node
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.synthesis import PassageMatcher, assemble
from agentic_retriever.synthesis.citations import NUMBER_MISMATCH_CAP
from agentic_retriever.text import Tokenizer

TEXT = (
    "The **NS-5** probe was launched in February 2024.  It sold 9,800 units\nin eight months. "
    "Revenue rose by 11.8 percent to 68.4 million. Margins were stable."
)


def matcher(text: str, language: str = "en", **metadata) -> PassageMatcher:
    (passage,) = assemble([make_node(text, start=40, **metadata)], max_chars=10**6)
    return PassageMatcher(passage, Tokenizer(language))


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("It sold 9,800 units in eight months.", "It sold 9,800 units\nin eight months."),
        ("- it sold 9,800 units in eight months", "It sold 9,800 units\nin eight months."),
        ("The NS-5 probe was launched in February 2024.", "The **NS-5** probe was launched in February 2024."),
        ("sold 9,800 units", "It sold 9,800 units\nin eight months."),
        ("**Margins were stable**", "Margins were stable."),
    ],
)
def test_verbatim_sentences_are_found_whole_with_score_one(sentence, expected):
    m = matcher(TEXT)
    support = m.locate(sentence)
    assert support.quote == expected
    assert support.score == 1.0


def test_part_of_a_word_is_not_verbatim():
    support = matcher("Carpets are blue. Nothing else is.").locate("car")
    assert support is None or support.score < 1.0


def test_paraphrase_is_found_below_one_and_above_noise():
    m = matcher(TEXT)
    support = m.locate("Revenue went up 11.8 percent, to 68.4 million")
    assert support.quote == "Revenue rose by 11.8 percent to 68.4 million."
    noise = m.locate("Elephants never forget their caretakers")
    assert noise is None or noise.score < 0.5 < support.score < 1.0


def test_a_wrong_number_caps_the_score():
    right = matcher(TEXT).locate("Revenue rose by 11.8 percent to 68.4 million euro")
    wrong = matcher(TEXT).locate("Revenue rose by 12.8 percent to 68.4 million euro")
    assert right.score > 0.7
    assert wrong.score == NUMBER_MISMATCH_CAP


def test_neighbours_are_taken_in_to_find_a_number():
    m = matcher(TEXT)
    support = m.locate("The probe, launched in February 2024, sold 9,800 of them")
    assert support.quote.startswith("The **NS-5** probe")
    assert support.quote.endswith("in eight months.")
    assert support.score > NUMBER_MISMATCH_CAP


def test_numbers_of_the_header_count():
    sentence = "In 2024 the margins were very stable"
    assert matcher(TEXT.replace("2024", "this year")).locate(sentence).score <= NUMBER_MISMATCH_CAP
    assert matcher(TEXT.replace("2024", "this year"), title="Results 2024").locate(sentence).score > NUMBER_MISMATCH_CAP


def test_thai_sentence_is_found_within_unspaced_text():
    text = "โฉนดที่ดินเลขที่ 10234\nเนื้อที่ 7 ไร่ 1 งาน\nผู้ถือกรรมสิทธิ์คือนางสาวกานดา"
    m = matcher(text, "th")
    assert m.locate("ผู้ถือกรรมสิทธิ์คือนางสาวกานดา").quote == "ผู้ถือกรรมสิทธิ์คือนางสาวกานดา"
    support = m.locate("เนื้อที่ของแปลงนี้คือ ๗ ไร่")
    assert "7 ไร่" in support.quote
    assert support.score > NUMBER_MISMATCH_CAP


@pytest.mark.parametrize("sentence", ["", "   ", "...", "**", "- "])
def test_a_sentence_that_says_nothing_has_no_support(sentence):
    assert matcher(TEXT).locate(sentence) is None


def test_citation_counts_from_the_source():
    (passage,) = assemble(
        [make_node("Aaa. Bbb.", start=100, node_id="n", title="T", section="S", page=2)], max_chars=99
    )
    citation = passage.cite(5, 9, 0.8, number=3, index="idx")
    assert (citation.number, citation.start, citation.end, citation.quote) == (3, 105, 109, "Bbb.")
    assert (citation.doc_id, citation.node_id, citation.index) == ("doc", "n", "idx")
    assert (citation.title, citation.section, citation.page, citation.score) == ("T", "S", 2, 0.8)


@given(st.text(max_size=120), st.text(max_size=200))
def test_any_sentence_against_any_text_gives_a_span_inside_it(sentence, text):
    if not text.strip():
        return
    support = matcher(text).locate(sentence)
    if support is not None:
        assert 40 <= support.start < support.end <= 40 + len(text)
        assert 0.0 <= support.score <= 1.0
        assert text[support.start - 40 : support.end - 40] == support.quote
        assert support.quote.strip()


@given(
    st.lists(st.sampled_from(["Uno es 1.", "Dos son 22,5.", "สาม ไร่", "Four?", "五个。"]), min_size=1, max_size=6),
    st.data(),
)
def test_every_sentence_of_a_text_is_found_in_it_verbatim(parts, data):
    text = "\n\n".join(parts)
    part = data.draw(st.sampled_from(parts))
    m = matcher(text)
    support = m.locate(part)
    assert support.score == 1.0
    assert part in support.quote
