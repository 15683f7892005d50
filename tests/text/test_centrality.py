from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.text import Tokenizer
from agentic_retriever.text.sentences import MAX_SENTENCES, central_sentences

TOKENS = Tokenizer("en")
TEXT = """# Bicycles

The city lends bicycles to everyone who lives in the city.
Bicycles of the city have a bell, a lamp and a basket.
Whoever borrows bicycles of the city returns them within a day.
Yesterday it rained on the northern mountains.
| part | price |
|---|---|
| bell | 5 |
"""


def test_the_odd_sentence_out_is_left_out():
    chosen = central_sentences([TEXT], tokenizer=TOKENS, room=125)
    assert len(chosen) == 2
    assert all("icycles" in sentence for sentence in chosen)


def test_sentences_are_verbatim_and_in_reading_order_and_fit():
    chosen = central_sentences([TEXT], tokenizer=TOKENS, room=130)
    places = [TEXT.index(sentence) for sentence in chosen]
    assert places == sorted(places)
    assert sum(map(len, chosen)) <= 130


def test_headings_and_tables_count_only_where_there_is_nothing_else():
    assert not any(s.startswith(("#", "|")) for s in central_sentences([TEXT], tokenizer=TOKENS, room=10_000))
    assert central_sentences(["# Only a heading"], tokenizer=TOKENS, room=100) == ["# Only a heading"]


def test_what_pieces_repeat_counts_once():
    piece = "The bridge is open on weekdays."
    assert (
        central_sentences([piece, piece, f"{piece} It is closed at night."], tokenizer=TOKENS, room=999).count(piece)
        == 1
    )


def test_nothing_comes_from_nothing():
    assert central_sentences([], tokenizer=TOKENS, room=10) == []
    assert central_sentences(["  \n "], tokenizer=TOKENS, room=10) == []


def test_one_sentence_is_chosen_even_if_it_is_too_long():
    assert len(central_sentences(["A sentence that is far longer than its room."], tokenizer=TOKENS, room=3)) == 1


def test_a_very_long_text_is_thinned_evenly():
    sentences = [f"Clause {i} of the contract names party {i % 97} and sum {i * 31}." for i in range(3 * MAX_SENTENCES)]
    chosen = central_sentences([" ".join(sentences)], tokenizer=TOKENS, room=1_000)
    assert chosen
    assert set(chosen) <= set(sentences)


def test_thai_has_central_sentences_too():
    text = "ที่ดินแปลงนี้อยู่ในเชียงใหม่\nที่ดินแปลงนี้มีเนื้อที่ห้าไร่ในเชียงใหม่\nฝนตกหนักเมื่อวาน"
    chosen = central_sentences([text], tokenizer=Tokenizer("th"), room=1)
    assert len(chosen) == 1
    assert chosen[0].startswith("ที่ดินแปลงนี้")


@given(st.lists(st.text(max_size=60), max_size=6), st.integers(0, 200))
def test_any_text_gives_sentences_of_it(texts, room):
    chosen = central_sentences(texts, tokenizer=Tokenizer(), room=room)
    assert all(any(sentence in text for text in texts) for sentence in chosen)
    assert len(set(chosen)) == len(chosen)
    assert len(chosen) <= 1 or sum(map(len, chosen)) <= max(room, *map(len, chosen))
    assert chosen == central_sentences(texts, tokenizer=Tokenizer(), room=room)


def test_the_text_package_itself_loads_no_numpy():
    code = "import sys, agentic_retriever.text; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
