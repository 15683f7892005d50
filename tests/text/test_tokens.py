from __future__ import annotations

import pickle
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.text import Tokenizer, count_overlap, stopwords
from agentic_retriever.text import tokens as tokens_module

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=200)
LANGUAGES = st.sampled_from(["und", "en", "es", "fr", "de", "it", "pt", "th", "zh", "hi", "ar", "ru", "tr", "fi", "xx"])
THAI = st.text("กขคงจชดตทนบปพมยรลวสหอะาิีุู่้", min_size=2, max_size=8)
HAN = st.text("猫犬山川東京学校的是不我", min_size=1, max_size=5)
LATIN = st.text("abcdefghijklmnopqrstuvwxyzáéíóúñüçßøABCDEÑ", min_size=2, max_size=12)


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "The runner was running in the races", ["runner", "run", "race"]),
        ("en", "Jared's isn’t O'Brien", ["jare", "obrien"]),
        ("und", "The Runners", ["the", "runners"]),
        ("es", "¿Cuáles son los vehículos?", ["vehicul"]),
        ("de", "Die Häuser und das Haus", ["haus", "haus"]),
        ("de", "Straße STRASSE", ["strass", "strass"]),
        ("fr", "L’activité de l'homme", ["activ", "homm"]),
        ("ru", "в домах", ["в", "дом"]),
        ("el", "Αθήνα ΑΘΗΝΑ", ["αθην", "αθην"]),
        ("ar", "الكِتَابُ كتاب", ["كتاب", "كتاب"]),
        ("hi", "बिल्ली", ["बिल्ल"]),
        ("und", "बिल्ली बैठी", ["बिल्ली", "बैठी"]),
        ("th", "แมว", ["แมว", "แม", "มว"]),
        ("th", "กา", ["กา"]),
        ("th", "ปี ๒๕๕๐", ["ปี", "2550"]),
        ("lo", "ລາວ", ["ລາວ", "ລາ", "າວ"]),
        ("km", "ខ្មែរ", ["ខ្ម", "្មែ", "មែរ", "ខ្", "្ម", "មែ", "ែរ"]),
        ("my", "မြန်", ["မြန", "ြန်", "မြ", "ြန", "န်"]),
        ("zh", "猫", ["猫"]),
        ("zh", "我的猫", ["我的", "的猫", "我", "的", "猫"]),
        ("ja", "ｶﾀｶﾅ", ["カタ", "タカ", "カナ", "カ", "タ", "カ", "ナ"]),
        ("ko", "강은 강", ["강은", "강", "은", "강"]),
        ("und", "Año ANO", ["ano", "ano"]),
        ("und", "ﬁne ｆｉｎｅ", ["fine", "fine"]),
        ("und", "soft\u00adhyphen zero\u200bwidth", ["softhyphen", "zerowidth"]),
    ],
)
def test_words(language: str, text: str, expected: list[str]) -> None:
    assert Tokenizer(language).tokens(text) == expected


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("6.2.1", {"6.2.1", "6.2"}), ("6.2.1. Presencia", {"6.2.1", "6.2", "presencia"}), ("C++", {"c++"}),
        ("C++17", {"c++", "17"}), ("C#.", {"c#"}), ("C", {"c"}), ("R", {"r"}), ("C/C++", {"c", "c++"}),
        ("NS-3", {"ns-3", "ns3", "ns", "3"}), ("A-12", {"a-12", "a12", "a", "12"}),
        ("2007/46/CE", {"2007/46/ce", "2007/46", "46/ce", "2007", "46", "ce"}),
        ("RD-750/2010", {"rd-750/2010", "rd-750", "750/2010", "rd", "750", "2010"}),
        ("ana.ruiz@example.com", {"ana.ruiz@example.com", "ana.ruiz", "example.com", "ana", "ruiz", "example", "com"}),
        ("v1.2", {"v1.2", "v1", "v", "1", "2"}), ("1,234.5", {"1234.5"}), ("1.234,5", {"1234.5"}),
        ("1,234,567", {"1234567"}), ("1.234.567", {"1234567", "1.234.567"}), ("1,234", {"1234", "1.234"}),
        ("3,5", {"3.5"}), ("1,2,3", {"1", "2", "3"}), ("1.5,2.5,7", {"1.5", "2.5", "7"}),
        ("100km", {"100km", "100", "km"}), ("m² CO₂", {"m2", "m", "co2", "co", "2"}),
        ("6½ 10⁶ nota¹", {"6", "1", "2", "10", "nota"}), ("5.º 3ª Name™", {"5", "3", "name"}),
        ("max_tokens", {"max_tokens", "max", "tokens"}), ("node.js", {"node.js", "node", "js"}),
        ("U.S.A.", {"usa"}), ("e-mail", {"e", "mail", "email"}), ("น.ส.3", {"นส", "น.ส.3", "3"}),
        ("พ.ศ. 2550", {"พศ", "2550"}),
    ],
)  # fmt: skip
def test_codes_are_kept_whole_and_in_parts(text: str, terms: set[str]) -> None:
    assert set(Tokenizer().tokens(text)) - {"⁄"} == terms


@pytest.mark.parametrize("text", ["", " ", "...", "the", "Who is the", "WHO IS THE", "😀", "\x00", "\ud800"])
def test_nothing_to_search_for(text: str) -> None:
    assert Tokenizer("en").tokens(text) == []


def test_stop_words_written_as_codes_are_kept() -> None:
    english, spanish = Tokenizer("en"), Tokenizer("es")
    assert english.tokens("it is the IT department") == ["it", "depart"]
    assert english.tokens("A dose of vitamin A") == ["dose", "vitamin", "a"]
    assert english.tokens("What should I do") == []
    assert spanish.tokens("remolques de categoría O") == [*spanish.tokens("remolque categoria"), "o"]
    assert english.tokens("TERMS OF THE CONTRACT") == english.tokens("terms contract")


@pytest.mark.parametrize(
    ("language", "written", "typed"),
    [
        ("es", "homologación", "homologacion"), ("es", "homologaciones", "HOMOLOGACIÓN"),
        ("es", "España", "espana"), ("pt", "homologações", "homologacao"), ("fr", "activités", "activite"),
        ("it", "attività", "attivita"), ("de", "Prüfungen", "prufung"), ("el", "λόγος", "ΛΟΓΟΣ"),
        ("ru", "ёлка", "елка"), ("ar", "أحمد", "احمد"), ("fa", "می\u200cخواهم", "ميخواهم"),
        ("th", "น้ำ", "น\u0e4d\u0e49า"), ("th", "แมว", "เเมว"), ("en", "NS-3", "ns3"), ("en", "e-mail", "Email"),
        ("en", "１２３", "123"),
    ],
)  # fmt: skip
def test_other_spelling_finds_it(language: str, written: str, typed: str) -> None:
    tokenizer = Tokenizer(language)
    assert count_overlap(tokenizer.tokens(typed), tokenizer.tokens(written)) == 1.0


@given(ANY_TEXT, LANGUAGES)
def test_never_raises(text: str, language: str) -> None:
    tokenizer = Tokenizer(language)
    terms = tokenizer.tokens(text)
    assert all(terms)
    assert max(map(len, terms), default=0) <= 64
    remaining = list(terms)
    for term in tokenizer.query_tokens(text):
        remaining.remove(term)


@given(LANGUAGES, st.text("กขคงนมา", max_size=5), THAI)
def test_thai_word_is_found_inside_a_run(language: str, around: str, word: str) -> None:
    tokenizer = Tokenizer(language)
    document = set(tokenizer.tokens(f"{around}{word}{around}"))
    assert set(tokenizer.tokens(word)) <= document
    assert set(tokenizer.query_tokens(word)) <= document


@given(LANGUAGES, st.text("国人大の中ア", max_size=5), HAN)
def test_han_word_is_found_inside_a_run(language: str, around: str, word: str) -> None:
    tokenizer = Tokenizer(language)
    document = set(tokenizer.tokens(f"{around}{word}{around}"))
    assert set(tokenizer.tokens(word)) <= document
    assert set(tokenizer.query_tokens(word)) <= document


@given(LANGUAGES, LATIN, LATIN, LATIN)
def test_latin_word_is_found_among_others(language: str, before: str, word: str, after: str) -> None:
    tokenizer = Tokenizer(language)
    assert set(tokenizer.tokens(word)) <= set(tokenizer.tokens(f"{before} ({word}), {after}."))


@given(LANGUAGES, LATIN)
def test_letter_case_does_not_matter(language: str, word: str) -> None:
    tokenizer = Tokenizer(language)
    assert tokenizer.tokens(word.lower()) == tokenizer.tokens(word.capitalize())


def test_query_tokens_leave_out_the_shorter_grams_of_long_runs() -> None:
    tokenizer = Tokenizer("th")
    assert tokenizer.query_tokens("แมวดำ") == ["แมว", "มวด", "วดํ", "ดํา"]
    assert tokenizer.query_tokens("ปู") == ["ปู"]
    assert tokenizer.query_tokens("我的猫") == ["我的", "的猫"]
    assert tokenizer.query_tokens("猫") == ["猫"]
    assert Tokenizer("en").query_tokens("running C++") == ["run", "c++"]


def test_region_and_case_of_the_language_are_ignored() -> None:
    assert Tokenizer("es-MX").tokens("homologaciones") == Tokenizer("ES").tokens("homologación")
    assert Tokenizer("es-MX").fingerprint == Tokenizer("es").fingerprint


def test_fingerprint_follows_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {language: Tokenizer(language).fingerprint for language in ("und", "en", "es", "fi")}
    assert len(set(before.values())) == 4
    assert before == {language: Tokenizer(language).fingerprint for language in before}
    monkeypatch.setattr(tokens_module, "TOKENIZER_VERSION", tokens_module.TOKENIZER_VERSION + 1)
    assert not set(before.values()) & {Tokenizer(language).fingerprint for language in before}


def test_is_a_value() -> None:
    tokenizer = Tokenizer("en")
    tokenizer.tokens("used before it is copied")
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer == Tokenizer("en")
    assert hash(tokenizer) == hash(Tokenizer("en"))


def test_threads_agree() -> None:
    text = " ".join(f"homologaciones{n} vehículos circulaciones{n}x reglamentación categorías" for n in range(300))
    text = text.translate(str.maketrans("0123456789", "abcdefghij"))
    expected = Tokenizer("es").tokens(text)
    tokens_module._rules.cache_clear()
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(Tokenizer("es").tokens(text))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


@pytest.mark.parametrize(
    "unit", ["a", "a.", "1,", "1.", "a-1/", "น.", "ก", "猫", "THE ", "a'", "\u0301", "x++", "@a", "½", "¹", "A "]
)
def test_long_texts_take_linear_time(unit: str) -> None:
    started = time.perf_counter()
    Tokenizer("en").tokens(unit * (200_000 // len(unit)))
    assert time.perf_counter() - started < 3


def test_stopwords() -> None:
    for language in ("en", "es", "fr", "de", "it", "pt"):
        words = stopwords(language)
        assert len(words) > 100
        assert all(Tokenizer(language).tokens(word) == [] for word in words)
    assert stopwords("th") == stopwords("und") == frozenset()


def test_count_overlap() -> None:
    assert count_overlap(["a", "b", "b"], ["b", "c"]) == 0.5
    assert count_overlap([], ["b"]) == 0.0
    assert count_overlap(["a"], []) == 0.0
    assert count_overlap(iter(["a"]), iter(["x", "a"])) == 1.0


@given(st.text(st.characters(codec="ascii"), max_size=200), LANGUAGES)
def test_a_text_is_cut_alike_whether_or_not_all_of_a_document_is_ascii(text: str, language: str) -> None:
    tokenizer = Tokenizer(language)
    in_other_company = tokenizer.tokens(f"{text}\n\n\u00e9t\u00e9")
    assert tokenizer.tokens(f"{text}\n\nx1x") == [
        *in_other_company[: len(in_other_company) - len(tokenizer.tokens("\u00e9t\u00e9"))],
        *tokenizer.tokens("x1x"),
    ]
