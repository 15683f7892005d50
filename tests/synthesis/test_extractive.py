from __future__ import annotations

import re
import time

import numpy as np
import pytest
from answer_nodes import chunked, make_node
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import EmbeddingError
from agentic_retriever.schema import Complexity
from agentic_retriever.synthesis import Extraction, ExtractiveSynthesizer, assemble
from agentic_retriever.synthesis.quotes import shown


def extract(query: str, nodes, language: str = "en", **kwargs) -> Extraction:
    synthesizer = ExtractiveSynthesizer(kwargs.pop("max_sentences", 4), kwargs.pop("embed", None))
    return synthesizer.extract(query, assemble(nodes, max_chars=10**6), language=language, **kwargs)


def collapsed(text: str) -> str:
    return " ".join(text.split())


def parts(found: Extraction) -> list[tuple[str, int]]:
    """The sentences of an extractive answer with their numbers."""
    pieces = re.split(r" \[(\d+)\](?:\s|$)", found.text)
    return [(pieces[i], int(pieces[i + 1])) for i in range(0, len(pieces) - 1, 2)]


def test_the_sentence_that_answers_is_quoted(handbook):
    found = extract("How much is the daily allowance for meals in Germany?", handbook)
    assert found.text == "The daily allowance for meals is EUR 48 in Germany. [1]"
    (citation,) = found.citations
    assert citation.quote == "The daily allowance for meals is EUR 48 in Germany."
    source = handbook[0].node.text
    assert source[citation.start : citation.end] == citation.quote
    assert (citation.title, citation.section, citation.page, citation.score) == ("Travel", "2 > 2.1", 3, 1.0)
    assert found.coverage == 1.0
    assert found.support == 1.0


def test_a_neighbour_that_adds_a_term_of_the_question_shares_the_number(handbook):
    found = extract("Who can approve a hotel night above EUR 140?", handbook)
    assert found.text == "A night may cost up to EUR 140. [1] Only the CFO can approve more. [1]"
    assert found.citations[0].quote == "A night may cost up to EUR 140. Only the CFO can approve more."


def test_a_table_row_is_found_by_its_own_words_and_counts_from_the_document(handbook):
    found = extract("What is the date of the unit sales plan?", handbook)
    assert found.text == "| Unit sales plan | Sales operations | 12 May 2025 | [1]"
    (citation,) = found.citations
    assert handbook[1].node.text[citation.start - 100 : citation.end - 100] == citation.quote
    assert citation.start > 100


def test_headings_and_table_rules_are_never_quoted(handbook):
    for query in ("Meals", "Milestones step owner date", "Hotels 2.2"):
        for sentence, _ in parts(extract(query, handbook)):
            assert not sentence.startswith("#")
            assert "---" not in sentence
            assert sentence != "| Step | Owner | Date |"


def test_a_list_follows_the_sentence_that_announces_it():
    text = "1. The rules apply to cars.\n2. Excluded are:\n   a) tractors;\n   b) rail vehicles.\n3. Others may apply."
    found = extract("Which vehicles are excluded?", [make_node(text, start=0)])
    assert "2. Excluded are: [1] a) tractors; [1] b) rail vehicles. [1]" in found.text
    assert found.citations[0].quote.endswith("b) rail vehicles.")


def test_records_that_lack_the_number_asked_for_are_not_mixed_in():
    nodes = [
        make_node(f"โฉนดเลขที่ {n}\nเนื้อที่ {n % 7} ไร่\nตั้งอยู่อำเภอแม่ริม", start=0, doc_id=str(n), title=f"โฉนดเลขที่ {n}")
        for n in (10235, 10234, 10236)
    ]
    found = extract("โฉนดเลขที่ 10234 มีเนื้อที่กี่ไร่", nodes, "th")
    assert {c.doc_id for c in found.citations} == {"10234"}
    assert "เนื้อที่ 0 ไร่" in found.text


def test_reading_order_is_documents_by_rank_then_place():
    first = make_node("Alpha pumps need oil. Water is wet. Alpha pumps need filters, too.", start=0, doc_id="z")
    second = make_node("The alpha pumps are serviced with new seals.", start=0, doc_id="a")
    found = extract("What do alpha pumps need?", [first, second], complexity=Complexity.COMPLEX)
    assert [c.number for c in found.citations] == list(range(1, len(found.citations) + 1))
    assert [c.doc_id for c in found.citations] == sorted((c.doc_id for c in found.citations), key="za".index)
    starts = [c.start for c in found.citations if c.doc_id == "z"]
    assert starts == sorted(starts)


def test_the_same_sentence_in_two_nodes_is_said_once():
    nodes = [make_node(f"Pumps need oil. Extra {i}.", start=0, doc_id=str(i)) for i in range(3)]
    assert extract("What do pumps need?", nodes).text.count("Pumps need oil.") == 1


def test_most_sentences_is_kept(handbook):
    text = " ".join(f"The pump number {i} needs oil of kind {i * 7}." for i in range(20))
    found = extract("pump oil kind", [make_node(text, start=0)], max_sentences=2, complexity=Complexity.COMPLEX)
    assert len(parts(found)) == 2


def test_without_a_shared_term_the_best_node_begins_with_low_support():
    nodes = [make_node("First one. Second one. Third one.", start=0), make_node("Other.", doc_id="b")]
    found = extract("Wozu dient das?", nodes, "de")
    assert found.text == "First one. [1] Second one. [1]"
    assert found.support < 0.5
    assert found.coverage == 0.0


@pytest.mark.parametrize("query", ["", "   ", "???", "\ud800", "x" * 100_000, "[1] {0} %s"])
def test_any_query_gives_an_extraction(handbook, query):
    assert extract(query, handbook).text


def test_only_headings_are_better_than_nothing():
    assert extract("meals", [make_node("# Meals", start=0)]).text == "# Meals [1]"


def test_no_passage_gives_nothing():
    found = extract("q", [])
    assert (found.text, found.citations, found.coverage, found.reachable) == ("", (), 0.0, 0.0)


def test_a_sources_own_reference_cannot_pass_for_a_citation():
    found = extract("Who wrote of pumps?", [make_node("Pumps were described by Smith [7] long ago.", start=0)])
    assert found.text == "Pumps were described by Smith (7) long ago. [1]"
    assert found.citations[0].quote == "Pumps were described by Smith [7] long ago."


def _axis(texts: list[str]) -> np.ndarray:
    return np.array([[1.0, 0.0] if "seals" in text else [0.0, 1.0] for text in texts])


def test_vectors_rescore_where_words_say_nothing():
    nodes = [make_node("Oil is black. Water is wet.", start=0), make_node("New seals fit.", start=0, doc_id="b")]
    found = extract("¿Qué juntas?", nodes, "es", embed=_axis, query_vector=[1.0, 0.0])
    assert found.text == "New seals fit. [1]"
    assert found.support == 1.0
    assert found.degraded == ()


def _fails(texts: list[str]) -> np.ndarray:
    raise EmbeddingError("the embedding model failed")


@pytest.mark.parametrize(
    "embed",
    [
        _fails,
        lambda texts: np.full((len(texts), 2), np.nan),
        lambda texts: np.ones((len(texts) + 1, 2)),
        lambda texts: np.ones((len(texts), 3)),
        lambda texts: "not an array",
    ],
)
def test_vectors_that_cannot_be_used_fall_back_to_words(handbook, embed):
    query = "How much is the daily allowance for meals in Germany?"
    found = extract(query, handbook, embed=embed, query_vector=[1.0, 0.0])
    assert found.text == extract(query, handbook).text
    assert [(d.step, d.fallback) for d in found.degraded] == [("synthesis.embed", "term overlap")]


TEXTS = st.one_of(
    st.text(max_size=300),
    st.lists(
        st.sampled_from(
            [
                "The pump needs oil.",
                "Pumps [3] need\n  filters!",
                "# Heading",
                "| a | b |\n|---|---|\n| pump | 7 |",
                "- item of the pump",
                "ปั๊มน้ำต้องใช้น้ำมัน 5 ลิตร",
                "泵需要油。每年一次。",
                "\n\n",
                "[1][2]",
                "x" * 700,
                "Needed are:",
            ]
        ),
        max_size=8,
    ).map("\n".join),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(TEXTS, st.lists(st.integers(0, 400), max_size=3)), min_size=1, max_size=3),
    st.sampled_from(["what does the pump need?", "ปั๊มใช้น้ำมันกี่ลิตร", "泵需要什么", "[1]", ""]),
    st.sampled_from(list(Complexity)),
)
def test_quotes_are_exact_and_every_sentence_stands_in_its_quote(sources, query, complexity):
    texts = {f"d{i}": text for i, (text, _) in enumerate(sources)}
    nodes = [node for i, (text, cuts) in enumerate(sources) for node in chunked(text, cuts, f"d{i}")]
    found = extract(query, nodes, "und", complexity=complexity)
    for citation in found.citations:
        assert texts[citation.doc_id][citation.start : citation.end] == citation.quote
    quotes = {c.number: shown(c.quote) for c in found.citations}
    assert sorted(quotes) == list(range(1, len(quotes) + 1))
    assert {int(n) for n in re.findall(r"\[(\d+)\]", found.text)} == set(quotes)
    for sentence, number in parts(found):
        assert collapsed(sentence) in quotes[number]
    assert 0.0 <= found.coverage <= 1.0
    assert found.coverage <= 1.0 >= found.reachable >= 0.0


def test_five_nodes_of_512_tokens_are_fast():
    sentence = "The pump number {} needs oil of kind {} and a filter every {} months of service. "
    nodes = [
        make_node("".join(sentence.format(i, i * j, j) for i in range(30)), start=0, doc_id=str(j)) for j in range(5)
    ]
    passages = assemble(nodes, max_chars=10**6)
    synthesizer = ExtractiveSynthesizer()
    synthesizer.extract("pump oil", passages, language="en")
    times = []
    for _ in range(5):
        started = time.perf_counter()
        synthesizer.extract("Which oil does pump number 7 need?", passages, language="en")
        times.append(time.perf_counter() - started)
    # The target is 0.03 s; the rest is room for a busy machine.
    assert min(times) < 0.1
