import re
import unicodedata
from itertools import pairwise
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import in_threads

from agentic_retriever.cli.terminal import TerminalPieces, safe_terminal
from agentic_retriever.errors import ConfigError
from agentic_retriever.text import Script, detect_language, dominant_script, normalise_query, scripts
from agentic_retriever.text.language_files import SECTIONS, language_files, languages_with, parse_language
from agentic_retriever.text.scripts import script_of

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=200)


@pytest.mark.parametrize(("char", "script"), [
    ("a", Script.LATIN), ("Ñ", Script.LATIN), ("ệ", Script.LATIN), ("Ａ", Script.LATIN), ("ж", Script.CYRILLIC),
    ("λ", Script.GREEK), ("ἄ", Script.GREEK), ("ع", Script.ARABIC), ("ש", Script.HEBREW),
    ("ह", Script.DEVANAGARI), ("ি", Script.BENGALI), ("ਪ", Script.GURMUKHI), ("ગ", Script.GUJARATI),
    ("ଓ", Script.ORIYA), ("த", Script.TAMIL), ("త", Script.TELUGU), ("ಕ", Script.KANNADA),
    ("മ", Script.MALAYALAM), ("ස", Script.SINHALA), ("ท", Script.THAI), ("็", Script.THAI), ("ລ", Script.LAO),
    ("བ", Script.TIBETAN), ("မ", Script.MYANMAR), ("ქ", Script.GEORGIAN), ("հ", Script.ARMENIAN),
    ("አ", Script.ETHIOPIC), ("ក", Script.KHMER), ("あ", Script.KANA), ("ー", Script.KANA), ("ｶ", Script.KANA),
    ("漢", Script.HAN), ("𠀀", Script.HAN), ("々", Script.HAN), ("한", Script.HANGUL), ("5", Script.OTHER),
    ("๕", Script.OTHER), ("฿", Script.OTHER), (" ", Script.OTHER), ("×", Script.OTHER), ("。", Script.OTHER),
    ("😀", Script.OTHER), ("\ud800", Script.OTHER), ("\u0301", Script.OTHER), ("\x00", Script.OTHER),
    ("\U0010ffff", Script.OTHER),
])  # fmt: skip
def test_script_of(char: str, script: Script) -> None:
    assert script_of(char) is script


def test_dominant_script_counts_letters_and_a_tie_goes_to_the_first() -> None:
    found = [dominant_script(text) for text in ("BM25 สำหรับภาษาไทย", "2024-01-01 !!!", "", "aж")]
    assert found == [Script.THAI, Script.OTHER, Script.OTHER, Script.LATIN]


@given(ANY_TEXT)
def test_dominant_script_agrees_with_script_of(text: str) -> None:
    counts = [script_of(char) for char in text if script_of(char) is not Script.OTHER]
    assert counts.count(dominant_script(text)) == max(map(counts.count, counts), default=0)


@pytest.mark.parametrize(("text", "expected"), [
    ("  what \t is\n\nthis ", "what is this"), ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"), ("a\x00b", "ab"),
    ("e\x07\u0301", "é"), ("x\ud800y", "x\ufffdy"), ("What", "What"), ("", ""), (" \x00 ", ""),
])  # fmt: skip
def test_normalise_query(text: str, expected: str) -> None:
    assert normalise_query(text) == expected


@given(ANY_TEXT)
def test_normalise_query_is_a_key(text: str) -> None:
    key = normalise_query(text)
    assert (normalise_query(key), normalise_query(f" {text}\n")) == (key, key)
    key.encode()
    assert not any(unicodedata.category(char) == "Cc" for char in key)


@pytest.mark.parametrize(("text", "expected"), [
    ("plain\ttext\n", "plain\ttext\n"), ("\x1b[31mred\x1b[0m", "red"), ("\x1b]0;title\x07after", "after"),
    ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"), ("\x9b2Jcleared", "cleared"),
    ("\x1bPq#0\x1b\\sixel", "sixel"), ("\x1b(Bset", "set"), ("\x1b]never closed\nnext", "never closed\nnext"),
    ("back\x08space\x7f\r\n", "backspace\n"), ("user\u202egnp.exe\u2066x\u200f", "usergnp.exex"),
    ("สวัสดี 👩\u200d👩 é", "สวัสดี 👩\u200d👩 é"), ("\ud800", "\ufffd"),
])  # fmt: skip
def test_safe_terminal(text: str, expected: str) -> None:
    assert safe_terminal(text) == expected


STEERING = st.text("\x1b[]()\x9b\x9c\x9d\x07\\0;mHP\n\t\u202e a", max_size=60)


ORDINARY = st.text(st.characters(categories=["L", "M", "N", "Zs", "P"]), max_size=100)


@given(STEERING | ANY_TEXT, ORDINARY)
def test_safe_terminal_leaves_nothing_that_steers_and_keeps_ordinary_text(text: str, ordinary: str) -> None:
    assert safe_terminal(ordinary) == ordinary
    safe = safe_terminal(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", safe)
    assert safe_terminal(safe) == safe


@given(STEERING, st.lists(st.integers(0, 60), max_size=8))
def test_pieces_are_shown_as_the_whole_is_wherever_it_is_cut(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = TerminalPieces()
    shown = [pieces.shown(text[begin:end]) for begin, end in pairwise(places)]
    assert "".join([*shown, pieces.end()]) == safe_terminal(text)
    assert pieces.end() == ""


def test_ordinary_pieces_do_not_wait() -> None:
    pieces = TerminalPieces()
    assert [pieces.shown(piece) for piece in ("Every ", "word [1]", " at once")] == ["Every ", "word [1]", " at once"]
    assert (pieces.shown("a\x1b]0;ow"), pieces.shown("ned\x07b")) == ("a", "b")
    assert (pieces.shown("c\x1b]" + "x" * 5_000), pieces.end()) == ("c" + "x" * 5_000, "")


@pytest.mark.parametrize(("text", "language"), [
    ("What is the notice period for employees?", "en"), ("refund policy", "en"),
    ("¿Qué altura mínima exige la homologación?", "es"), ("Artículo 42", "es"), ("Real Decreto 750/2010", "es"),
    ("Quelle est la durée du contrat ?", "fr"), ("Wie hoch ist die Miete im Monat?", "de"),
    ("Quanto costa il biglietto?", "it"), ("Qual é o prazo de entrega?", "pt"),
    ("Hoeveel kost het kaartje?", "nl"), ("Hur mycket kostar biljetten?", "sv"),
    ("Merhaba dünya, nasılsın?", "tr"), ("Сколько стоит билет?", "ru"),
    ("Скільки коштує квиток на потяг?", "uk"), ("Πόσο κοστίζει το εισιτήριο;", "el"), ("كم سعر التذكرة؟", "ar"),
    ("قیمت بلیط چقدر است؟", "fa"), ("टिकट का दाम क्या है?", "hi"), ("מה מחיר הכרטיס?", "he"),
    ("โฉนดที่ดินในเชียงใหม่มีกี่แปลง", "th"), ("BM25 algorithm คืออะไรครับ", "th"), ("ປີ້ລາຄາເທົ່າໃດ", "lo"),
    ("សំបុត្រថ្លៃប៉ុន្មាន", "km"), ("လက်မှတ်ဘယ်လောက်လဲ", "my"), ("机票多少钱？", "zh"),
    ("什么是 machine learning", "zh"), ("東京タワーはどこですか", "ja"), ("コーヒー", "ja"),
    ("표는 얼마입니까?", "ko"),
    ("டிக்கெட் விலை என்ன?", "ta"), ("What does 猫 mean?", "en"), ("  \n\t hello, how are you today?", "en"),
])  # fmt: skip
def test_detects(text: str, language: str) -> None:
    assert detect_language(text) == language


@pytest.mark.parametrize("text", ["", "   ", "😀🎉", "\x00", "\ud800\udfff", "C++", "6.2.1", "NS-3", "—", "\u0301"])
def test_undetermined(text: str) -> None:
    assert detect_language(text) == "und"


def test_only_the_beginning_is_examined() -> None:
    assert detect_language("The river flows through the old town. " * 100 + "ก" * 1_000_000) == "en"


@given(ANY_TEXT)
def test_never_raises(text: str) -> None:
    language = detect_language(text)
    assert language == "und" or (len(language) == 2 and language.isascii() and language.islower())


@pytest.mark.parametrize("broken", [False, True])
def test_a_full_folder_for_temporary_files_costs_the_classifier_at_most(monkeypatch, caplog, broken):
    questions = ["¿Quién paga la tasa de la que se habla?", "Who pays the fee for all of this?", "ใครจ่ายค่าธรรมเนียม"]
    ranked = scripts._classifier().rank(questions[0])
    scripts._classifier.cache_clear()
    scripts._detected.cache_clear()
    monkeypatch.setattr("tempfile.TemporaryFile", Mock(side_effect=OSError(28, "No space left on device")))
    if broken:  # another version of the library, say
        monkeypatch.setattr("numpy.load", Mock(side_effect=ValueError("no such file")))
    try:
        assert [detect_language(question) for question in questions] == ["es", "en", "th"]
        assert (scripts._classifier() is None) == broken
        assert broken or scripts._classifier().rank(questions[0]) == ranked
        assert len([message for message in caplog.messages if "TMPDIR" in message]) == 1
        assert len(caplog.messages) == 1 + broken
    finally:
        scripts._classifier.cache_clear()
        scripts._detected.cache_clear()


def test_threads_agree() -> None:
    questions = ["¿Quién paga la tasa?", "Who pays the fee?", "Wer bezahlt die Gebühr?", "ใครจ่ายค่าธรรมเนียม"] * 25
    expected = [detect_language(question) for question in questions]
    assert in_threads(lambda _i: [detect_language(question) for question in questions], range(8)) == [expected] * 8


def test_every_packaged_file_is_named_after_its_language_and_read_once_and_english_has_every_section():
    assert {"en", "es", "th", "und"} <= set(language_files())
    assert all(data["language"] == code for code, data in language_files().items())
    assert language_files() is language_files()
    assert [section for section in SECTIONS if "en" not in languages_with(section)] == []
    assert set(language_files()) - set(languages_with("not_found")) == {"und"}


@pytest.mark.parametrize(("text", "told"), [
    ("{", "is no JSON"), ("[]", "must be an object"), ('{"language": 3, "spaced": true}', "must be an object"),
    ('{"language": "xx", "spaced": "yes"}', "spaced must be true or false"),
    ('{"language": "xx", "spaced": true, "sginals": {}}', "unknown sections: sginals"),
])  # fmt: skip
def test_a_damaged_file_is_named(text, told):
    with pytest.raises(ConfigError, match=r"languages/xx\.json") as caught:
        parse_language(text, file="languages/xx.json")
    assert told in str(caught.value)
