import pytest
from command_line import run_fresh
from hypothesis import given
from hypothesis import strategies as st
from waiting import takes_linear_time

from agentic_retriever.text import Tokenizer, split_sentences
from agentic_retriever.text.sentences import MAX_SENTENCES, central_sentences

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=300)
PROSE = st.lists(
    st.sampled_from(
        [*"aBc1.!?…。।؟។|#-*> \n\t\"')(กา  และแต่", "\n\n", ". ", " A", "Art. ", "1. ", "EE. UU. ", "\r\n", "5 ไร่ "]
    ),
    max_size=120,
).map("".join)


def texts(source: str) -> list[str]:
    return [sentence.text for sentence in split_sentences(source)]


@pytest.mark.parametrize("sentences", [
    ["It rained.", "We stayed in!", "Why not?", "Because."],
    ["Dr. Smith met J. R. Jones, e.g. in the U.S. Army.", "He left at 5 p.m.", "The end."],
    ["It costs 3.5 m or $1,234.50 per unit.", "See No. 5 and Fig. 2.", "No.", "I will not."],
    ['She said "Stop!" and left.', '"Go on."', "(He did.)", "Then... nothing.", "Well…", "Fine."],
    ["Take plan B.", "It works with vitamin C.", "This is known.[12]", "And this.¹²", "Really?!", "Yes."],
    ["I am here to . . . submit.", "Good."],
    ["El Sr. Gil vive en EE. UU. desde 1999.", "Según el Art. 5, p. ej. Madrid, no procede.", "¿Seguro?", "¡Sí!"],
    ["Véase el apdo. 6.2.1.", "La Dra. Ruiz, de Autos S.A. en Vigo, firmó.", "Fin."],
    ["Am 3. Oktober 1990 war es z. B. schön.", "Siehe Nr. 5, Abs. 2.", "Ende."],
    ["Bis zum 7. Tag im 1. Semester gilt das.", "Er kam am 7.", "Dann ging er.", "Das sind 12.", "Tage zählen nicht."],
    ["M. Dupont arrive à 8 h.", "« Bonjour ! »", "Il part."],
    ["Он родился в г. Москве, т. е. в столице.", "Это стр. 5.", "Да!"],
    ["Ήρθες;", "Ναι, ήρθα.", "Καλά."], ["今天天气很好。", "我们去公园吧！", "好吗？"],
    ["「何？」と聞いた。", "東京は大きい。"],
    ["안녕하세요.", "저는 학생입니다.", "맞아요?"], ["यह पहला वाक्य है।", "यह दूसरा है॥", "क्या?"],
    ["هل أنت بخير؟", "نعم.", "شكرا."],
    ["ខ្ញុំទៅផ្សារ។", "អ្នកទៅណា?"],
    ["မြန်မာစာ။", "ဒုတိယစာကြောင်း။"],
    ["the flow is laminar .", "the wing is swept ."],
    ["He works at Acme Inc. in Paris.", "He likes it etc.", "This is all."],
])  # fmt: skip
def test_sentences(sentences: list[str]) -> None:
    assert texts(" ".join(sentences)) == sentences


@pytest.mark.parametrize("source", ["今天。明天！后天？", "あ。い！う？", "एक।दो।", "ក។ខ។", "က။ခ။"])
def test_marks_that_need_no_space(source: str) -> None:
    assert len(texts(source)) == len([char for char in source if char in "。！？।។။"])


@pytest.mark.parametrize(("above", "below", "count"), [
    ("Gefördert wird ein Verein im Jahr mit bis zu höchstens", "2.500 € auf Antrag.", 1),
    ("Alle Anträge auf Briefwahl stellt man bis zum", "7. Tag vor der Wahl.", 1),
    ("Anträge auf Briefwahl stellt man in Ruhe", "7. Tag der Wahl", 2), ("So wird ein Verein gefördert:", "2.500 €", 2),
])  # fmt: skip
def test_a_number_with_which_a_line_goes_on_opens_no_item(above: str, below: str, count: int) -> None:
    assert len(texts(f"{above}\n{below}")) == count


def test_thai_and_lao_are_cut_at_clauses_and_lines() -> None:
    sentences = [
        "ที่ดินแปลงนี้มีเนื้อที่ 5 ไร่ 2 งาน ตั้งอยู่ในจังหวัดเชียงใหม่",
        "แต่เจ้าของได้ขายไปแล้วเมื่อ พ.ศ. 2550",
        "ดังนั้นจึงต้องโอนกรรมสิทธิ์ที่สำนักงานที่ดิน",
    ]
    assert texts(" ".join(sentences) + "\nบรรทัดใหม่") == [*sentences, "บรรทัดใหม่"]
    assert len(texts("ຂ້ອຍໄປຕະຫຼາດມື້ນີ້ກັບໝູ່ຂອງຂ້ອຍ ແຕ່ວ່າຝົນຕົກໜັກຫຼາຍຈົນບໍ່ສາມາດໄປໄດ້")) == 2


def test_thai_pieces_have_a_readable_size_and_numbers_stay_with_their_units() -> None:
    pieces = texts("เขาไปตลาด ซื้อปลา ซื้อผัก แต่ไม่ซื้อเนื้อ " * 40)
    assert all(20 <= len(piece) <= 200 for piece in pieces)
    assert len(pieces) > 10
    source = "เนื้อที่ทั้งหมดของโฉนดฉบับนี้ตามที่รังวัด " + "12 ไร่ 3 งาน 45 ตารางวา " * 20
    for piece in texts(source):
        assert not piece[0].isdigit()
        assert not piece[-1].isdigit()


def test_markdown() -> None:
    source = """# Espejos
## 6.2.1. Presencia
Los vehículos llevarán espejos. Véase
la tabla siguiente.

- obligatorio: clase 1. Siempre
- optativo: clase V
  en otro caso
1. Primero
2. Segundo

| Clase | Radio |
|-------|-------|
| I     | 1.200 mm. Mínimo |
Texto final"""
    assert texts(source) == [
        "# Espejos", "## 6.2.1. Presencia", "Los vehículos llevarán espejos.", "Véase\nla tabla siguiente.",
        "- obligatorio: clase 1.", "Siempre", "- optativo: clase V\n  en otro caso", "1. Primero", "2. Segundo",
        "| Clase | Radio |", "|-------|-------|", "| I     | 1.200 mm. Mínimo |", "Texto final",
    ]  # fmt: skip


def test_plain_text_headings_and_sections() -> None:
    source = "6.2.1. Presencia\nLos vehículos llevarán espejos.\n6.2.2. Número. Habrá dos.\n\nAnexo\nTodo lo demás"
    assert texts(source) == [
        "6.2.1. Presencia", "Los vehículos llevarán espejos.", "6.2.2. Número.", "Habrá dos.", "Anexo", "Todo lo demás",
    ]  # fmt: skip


def test_a_blank_line_always_ends_a_sentence_wrapped_prose_runs_on_and_nothing_has_none() -> None:
    assert texts("one line that has no stop,\n \t\nand another") == ["one line that has no stop,", "and another"]
    assert texts("one,\r\n\r\nand two") == ["one,", "and two"]
    assert len(texts("Largo, and so on     1/4=59     Vivo     1/4=168\nLento, and so on     1/4=56")) == 2
    source = "The committee, which had met on every Tuesday since March,\ndecided to Postpone the vote. It\nmet again."
    assert len(texts(source)) == 2
    assert split_sentences("") == split_sentences(" \n\t ") == split_sentences("\u2028") == []


@given(ANY_TEXT | PROSE)
def test_spans_are_exact_ordered_and_complete(source: str) -> None:
    sentences = split_sentences(source)
    at = 0
    for sentence in sentences:
        assert sentence.text == source[sentence.start : sentence.end]
        assert sentence.text == sentence.text.strip() != ""
        assert not source[at : sentence.start].strip()
        assert at <= sentence.start < sentence.end
        at = sentence.end
    assert not source[at:].strip()


@pytest.mark.parametrize("word", ["ก", "word", "กา ", "word ", "长句，", "e\u0301\u0302", "เก"])
def test_long_text_is_cut_where_a_reader_would_pause(word: str) -> None:
    source = word * 5_000
    sentences = split_sentences(source)
    assert all(len(sentence.text) <= 1_000 for sentence in sentences)
    assert "".join(sentence.text for sentence in sentences).replace(" ", "") == source.replace(" ", "")
    if word[-1] in " ，":
        assert all(sentence.text.endswith(word.strip()) for sentence in sentences)
    assert not any(sentence.text[0] in "\u0301\u0302" or sentence.text[-1] == "เ" for sentence in sentences)


@pytest.mark.parametrize(
    "unit", ["ก", "กา ", "a. ", ". ", '? "', "x\n", "- ", "|", ".[1]", "\n", " ", "1.", "> ", "a\t", ". (", "A", "_ "]
)
def test_long_texts_take_linear_time(unit: str) -> None:
    takes_linear_time(split_sentences, unit)


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


def test_the_odd_sentence_out_is_left_out_and_the_others_are_verbatim_in_reading_order():
    chosen = central_sentences([TEXT], tokenizer=TOKENS, room=125)
    places = [TEXT.index(sentence) for sentence in chosen]
    assert (places, len(chosen)) == (sorted(places), 2)
    assert all("icycles" in sentence for sentence in chosen)
    assert sum(map(len, chosen)) <= 125


def test_headings_and_tables_count_only_where_there_is_nothing_else():
    assert not any(s.startswith(("#", "|")) for s in central_sentences([TEXT], tokenizer=TOKENS, room=10_000))
    assert central_sentences(["# Only a heading"], tokenizer=TOKENS, room=100) == ["# Only a heading"]


def test_what_pieces_repeat_counts_once_and_one_sentence_is_chosen_even_if_it_is_too_long_but_none_of_nothing():
    piece = "The bridge is open on weekdays."
    texts = [piece, piece, f"{piece} It is closed at night."]
    assert central_sentences(texts, tokenizer=TOKENS, room=999).count(piece) == 1
    for nothing in ([], ["  \n "]):
        assert central_sentences(nothing, tokenizer=TOKENS, room=10) == []
    assert len(central_sentences(["A sentence that is far longer than its room."], tokenizer=TOKENS, room=3)) == 1


def test_a_very_long_text_is_thinned_evenly_and_thai_has_central_sentences_too():
    sentences = [f"Clause {i} of the contract names party {i % 97} and sum {i * 31}." for i in range(3 * MAX_SENTENCES)]
    chosen = central_sentences([" ".join(sentences)], tokenizer=TOKENS, room=1_000)
    assert chosen
    assert set(chosen) <= set(sentences)
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


def test_who_reads_files_and_cuts_sentences_loads_neither_numpy_nor_llama_index():
    code = "import sys, agentic_retriever.ingestion.readers; print({'numpy', 'llama_index.core'} & sys.modules.keys())"
    assert run_fresh(code).stdout.strip() == "set()"
