import pickle
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import in_threads, takes_linear_time

from agentic_retriever.text import Tokenizer, count_overlap, stopwords
from agentic_retriever.text import tokens as tokens_module
from agentic_retriever.text.tokens import absent, identifiers, kind_of, numbers, without_asking, without_requests

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=200)
LANGUAGES = st.sampled_from(["und", "en", "es", "fr", "de", "it", "pt", "th", "zh", "hi", "ar", "ru", "tr", "fi", "xx"])
THAI = st.text("กขคงจชดตทนบปพมยรลวสหอะาิีุู่้", min_size=2, max_size=8)
HAN = st.text("猫犬山川東京学校的是不我", min_size=1, max_size=5)
LATIN = st.text("abcdefghijklmnopqrstuvwxyzáéíóúñüçßøABCDEÑ", min_size=2, max_size=12)


@pytest.mark.parametrize(("language", "text", "expected"), [
    ("en", "The runner was running in the races", ["runner", "run", "race"]),
    ("en", "Jared's isn’t O'Brien", ["jare", "obrien"]), ("und", "The Runners", ["the", "runners"]),
    ("es", "¿Cuáles son los vehículos?", ["vehicul"]), ("de", "Die Häuser und das Haus", ["haus", "haus"]),
    ("de", "Straße STRASSE", ["strass", "strass"]), ("fr", "L’activité de l'homme", ["activ", "homm"]),
    ("ru", "в домах", ["дом"]), ("el", "Αθήνα ΑΘΗΝΑ", ["αθην", "αθην"]),
    ("ar", "الكِتَابُ كتاب", ["كتاب", "كتاب"]), ("hi", "बिल्ली", ["बिल्ल"]),
    ("und", "बिल्ली बैठी", ["बिल्ली", "बैठी"]), ("th", "แมว", ["แมว", "แม", "มว"]), ("th", "กา", ["กา"]),
    ("th", "ปี ๒๕๕๐", ["ปี", "2550"]), ("lo", "ລາວ", ["ລາວ", "ລາ", "າວ"]),
    ("km", "ខ្មែរ", ["ខ្ម", "្មែ", "មែរ", "ខ្", "្ម", "មែ", "ែរ"]),
    ("my", "မြန်", ["မြန", "ြန်", "မြ", "ြန", "န်"]), ("zh", "猫", ["猫"]),
    ("zh", "我的猫", ["我的", "的猫", "我", "的", "猫"]),
    ("ja", "ｶﾀｶﾅ", ["カタ", "タカ", "カナ", "カ", "タ", "カ", "ナ"]),
    ("ko", "강은 강", ["강은", "강", "은", "강"]), ("und", "Año ANO", ["ano", "ano"]),
    ("und", "ﬁne ｆｉｎｅ", ["fine", "fine"]),
    ("und", "soft\u00adhyphen zero\u200bwidth", ["softhyphen", "zerowidth"]),
])  # fmt: skip
def test_words(language: str, text: str, expected: list[str]) -> None:
    assert Tokenizer(language).tokens(text) == expected


@pytest.mark.parametrize(("text", "terms"), [
    ("6.2.1", {"6.2.1", "6.2"}), ("6.2.1. Presencia", {"6.2.1", "6.2", "presencia"}), ("C++", {"c++"}),
    ("C++17", {"c++", "17"}), ("C#.", {"c#"}), ("C", {"c"}), ("R", {"r"}), ("C/C++", {"c", "c++"}),
    ("NS-3", {"ns-3", "ns3", "ns", "3"}), ("A-12", {"a-12", "a12", "a", "12"}),
    ("2007/46/CE", {"2007/46/ce", "2007/46", "46/ce", "2007", "46", "ce"}),
    ("RD-750/2010", {"rd-750/2010", "rd-750", "750/2010", "rd", "750", "2010"}),
    ("ana.ruiz@example.com", {"ana.ruiz@example.com", "ana.ruiz", "example.com", "ana", "ruiz", "example", "com"}),
    ("v1.2", {"v1.2", "1.2", "v1", "v", "1", "2"}), ("1,234.5", {"1234.5"}), ("1.234,5", {"1234.5"}),
    ("1,234,567", {"1234567"}), ("1.234.567", {"1234567", "1.234.567"}), ("1,234", {"1234", "1.234"}),
    ("3,5", {"3.5"}), ("1,2,3", {"1", "2", "3"}), ("1.5,2.5,7", {"1.5", "2.5", "7"}),
    ("100km", {"100km", "100", "km"}), ("m² CO₂", {"m2", "m", "co2", "co", "2"}),
    ("6½ 10⁶ nota¹", {"6", "1", "2", "10", "nota"}), ("5.º 3ª Name™", {"5", "3", "name"}),
    ("max_tokens", {"max_tokens", "max", "tokens"}), ("node.js", {"node.js", "node", "js"}),
    ("U.S.A.", {"usa"}), ("e-mail", {"e", "mail", "email"}), ("น.ส.3", {"นส", "น.ส.3", "3"}),
    ("พ.ศ. 2550", {"พศ", "2550"}),
])  # fmt: skip
def test_codes_are_kept_whole_and_in_parts(text: str, terms: set[str]) -> None:
    assert set(Tokenizer().tokens(text)) - {"⁄"} == terms


DAYS = st.builds(date, st.integers(1000, 2999), st.just(3), st.integers(1, 31))
WRITTEN = [
    "{0.day} March {0.year}", "March {0.day}, {0.year}", "the {0.day}th of march {0.year}", "{0:%Y/%m/%d}",
    "{0.day}. März {0.year}", "{0.year}-3-{0.day}", "{0.day} de marzo de {0.year}", "le {0.day}er mars {0.year}",
]  # fmt: skip


@given(st.lists(DAYS, min_size=2, max_size=2), LANGUAGES)
def test_a_date_has_the_same_term_however_it_is_written_and_no_other_one(days, language):
    tokenizer = Tokenizer(language)
    for form in WRITTEN:
        found = [set(tokenizer.tokens(f"It rained on {form.format(day)}.")) for day in days]
        assert all(
            (day.isoformat() in terms) == (day == own) for terms, own in zip(found, days, strict=True) for day in days
        ), form
    assert "2015-03-15" not in tokenizer.tokens("15 marches in 2015, March 2015, 15 of them, 15 x March x y 2015.15")


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


@pytest.mark.parametrize(("language", "written", "typed"), [
    ("es", "homologación", "homologacion"), ("es", "homologaciones", "HOMOLOGACIÓN"),
    ("es", "España", "espana"), ("pt", "homologações", "homologacao"), ("fr", "activités", "activite"),
    ("it", "attività", "attivita"), ("de", "Prüfungen", "prufung"), ("el", "λόγος", "ΛΟΓΟΣ"),
    ("ru", "ёлка", "елка"), ("ar", "أحمد", "احمد"), ("fa", "می\u200cخواهم", "ميخواهم"),
    ("th", "น้ำ", "น\u0e4d\u0e49า"), ("th", "แมว", "เเมว"), ("en", "NS-3", "ns3"), ("en", "e-mail", "Email"),
    ("en", "１２３", "123"), ("en", "2012-01-04", "4 January 2012"), ("es", "2012/1/4", "4 de enero de 2012"),
    ("ru", "2012-05-14T12:30", "14 мая"), ("fr", "2012-08", "août 2012"), ("en", "version 3.0.0", "version 3"),
    ("en", "DEC 1997", "December 1997"), ("en", "Sept. 4", "4 September"),
])  # fmt: skip
def test_other_spelling_finds_it(language: str, written: str, typed: str) -> None:
    tokenizer = Tokenizer(language)
    assert count_overlap(tokenizer.tokens(typed), tokenizer.tokens(written)) == 1.0


def test_function_words_of_a_query_in_another_language_tell_nothing() -> None:
    french = Tokenizer("en").weighed_tokens("Quelle est la taille du tampon dans les réglages de Yoshimi ?")
    assert french == Tokenizer("en").query_tokens("taille tampon réglages Yoshimi")
    assert "mit" in Tokenizer("en").telling_tokens("mit Lizenz")  # one alone may be a word of this language
    assert {"de", "la"} <= {*Tokenizer("en").query_tokens("Juan de la Cruz y el mar")}  # a name is cut as in texts
    assert "a" in Tokenizer("en-GB").telling_tokens("What is vitamin A and what is it for?")
    assert "la" in Tokenizer("en").tokens("la taille")


@given(ANY_TEXT, LANGUAGES)
def test_never_raises(text: str, language: str) -> None:
    tokenizer = Tokenizer(language)
    terms = tokenizer.tokens(text)
    assert all(terms)
    assert max(map(len, terms), default=0) <= 64
    remaining = list(terms)
    for term in tokenizer.query_tokens(text):
        remaining.remove(term)


RUNS = st.tuples(st.text("กขคงนมา", max_size=5), THAI) | st.tuples(st.text("国人大の中ア", max_size=5), HAN)


@settings(max_examples=200)
@given(LANGUAGES, RUNS)
def test_a_word_is_found_inside_a_run_without_spaces(language: str, run: tuple[str, str]) -> None:
    tokenizer, (around, word) = Tokenizer(language), run
    document = set(tokenizer.tokens(f"{around}{word}{around}"))
    assert set(tokenizer.tokens(word)) <= document
    assert set(tokenizer.query_tokens(word)) <= document


@given(LANGUAGES, LATIN, LATIN, LATIN)
def test_latin_word_is_found_among_others_whatever_its_case(language: str, before: str, word: str, after: str) -> None:
    tokenizer = Tokenizer(language)
    assert set(tokenizer.tokens(word)) <= set(tokenizer.tokens(f"{before} ({word}), {after}."))
    assert tokenizer.tokens(word.lower()) == tokenizer.tokens(word.capitalize())


def test_query_tokens_leave_out_the_shorter_grams_of_long_runs() -> None:
    tokenizer = Tokenizer("th")
    assert tokenizer.query_tokens("แมวดำ") == ["แมว", "มวด", "วดํ", "ดํา"]
    assert tokenizer.query_tokens("ปู") == ["ปู"]
    assert (tokenizer.query_tokens("我的猫"), tokenizer.query_tokens("猫")) == (["我的", "的猫"], ["猫"])
    assert Tokenizer("en").query_tokens("running C++") == ["run", "c++"]


def test_a_number_weighs_more_beside_n_grams_and_what_only_asks_nothing() -> None:
    tokenizer = Tokenizer("th")
    assert [tokenizer.weighed_tokens(f"โฉนด {number}").count(number) for number in ("10234", "5")] == [3, 1]
    assert tokenizer.weighed_tokens("地契 10234 とは何ですか") == ["地契", "10234", "10234"]
    assert list(map(tokenizer.weighed_tokens, ("为什么", "何炅是谁"))) == [["为什", "什么"], ["何炅", "炅是"]]
    assert tokenizer.weighed_tokens("deed 10234") == tokenizer.query_tokens("deed 10234")
    assert set(tokenizer.weighed_tokens("โฉนด NS-3")) == set(tokenizer.query_tokens("โฉนด NS-3"))


def test_fingerprint_follows_the_rules_whatever_region_and_case_of_the_language(monkeypatch) -> None:
    assert Tokenizer("es-MX").tokens("homologaciones") == Tokenizer("ES").tokens("homologación")
    assert Tokenizer("es-MX").fingerprint == Tokenizer("es").fingerprint
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
    assert in_threads(lambda _i: Tokenizer("es").tokens(text), range(8)) == [expected] * 8


@pytest.mark.parametrize(
    "unit", ["a", "a.", "1,", "1.", "a-1/", "น.", "ก", "猫", "THE ", "a'", "\u0301", "x++", "@a", "½", "¹", "A "]
)
def test_long_texts_take_linear_time(unit: str) -> None:
    takes_linear_time(Tokenizer("en").tokens, unit)


def test_stopwords_and_count_overlap() -> None:
    for language in ("en", "es", "fr", "de", "it", "pt", "ru", "nl", "da", "no", "sv", "tr"):
        assert len(stopwords(language)) > 100
        assert all(Tokenizer(language).tokens(word) == [] for word in stopwords(language))
    assert stopwords("th") == stopwords("und") == frozenset()
    assert Tokenizer("de").tokens("Wofür, womit, woher?") == Tokenizer("ru").tokens("Сколько, откуда?") == []
    assert count_overlap(["a", "b", "b"], ["b", "c"]) == 0.5
    assert count_overlap([], ["b"]) == count_overlap(["a"], []) == 0.0
    assert count_overlap(iter(["a"]), iter(["x", "a"])) == 1.0


@given(st.text(st.characters(codec="ascii"), max_size=200), LANGUAGES)
def test_a_text_is_cut_alike_whether_or_not_all_of_a_document_is_ascii(text: str, language: str) -> None:
    tokenizer = Tokenizer(language)
    others = tokenizer.tokens(f"{text}\n\n\u00e9t\u00e9")
    own = others[: len(others) - len(tokenizer.tokens("\u00e9t\u00e9"))]
    assert tokenizer.tokens(f"{text}\n\nx1x") == [*own, *tokenizer.tokens("x1x")]


@pytest.mark.parametrize(("text", "found"), [
    ("How do I set the alarm on the NS-7 mast?", ["ns7"]), ("what does E17 mean on the AQ-12", ["e17", "aq12"]),
    ("serial numbers from 3A-20000 on", ["3a20000"]), ("¿Qué dice el Artículo 57?", ["artículo 57"]),
    ("importe de la tasa T-06", ["t06"]), ("โฉนดเลขที่ 10234 ใครเป็นเจ้าของ", ["เลขที่ 10234"]),
    ("โฉนดเลขที่10234", ["เลขที่ 10234"]), ("น.ส.3ก คืออะไร", ["นส3ก"]), ("ค่าธรรมเนียมรหัส ธน-06 คือ", ["ธน06"]),
    ("ส.ป.ก.4-01 ในนครราชสีมา", ["สปก401"]), ("เลขที่ ๑๐๒๓๔", ["เลขที่ 10234"]),
    ("article 6.2.3, article 6.2.3", ["article 6.2.3"]),
    ("in 2024 it cost 60,000 euro for 20 people, 15 minutes each", []),
    ("the 10th of May and a 15-minute break", []), ("", []),
    ("ค่าธรรมเนียมรหัสธน-06", []),  # it touches words without spaces
])  # fmt: skip
def test_finds_what_names_one_thing(text, found):
    assert identifiers(text) == found


def test_numbers_that_stand_alone_and_kinds_of_identifiers():
    assert numbers("12345 in 2024, 1,234 and 6.2.3 or 3.5") == ["12345", "2024", "6.2.3"]
    assert kind_of("ns3") == kind_of("e42") == "a9"
    assert kind_of("artículo 57") == kind_of("artículo 17") != kind_of("anexo 3")
    assert kind_of("3a20000") == "9a9"


def test_absent_only_where_the_kind_is_known_and_its_number_stands_nowhere_alone():
    names = {"a9": ["ns3", "ns5", "aq12"], "article 9": ["article 1"], "9": ["2024"], "9.9.9": ["6.2.3"]}
    known = {kind: frozenset(listed) for kind, listed in names.items()}
    known["section 9"] = frozenset({"section 1.1", "section 1.2", "section 1.3"})
    assert absent(["ns7", "ns3"], known) == ["ns7"]
    assert absent(["article 2", "9a9b"], known) == absent(["ns7"], {}) == []
    assert absent(["article 2"], known, least=1) == ["article 2"]
    assert absent(["section 6.2.3", "section 6.2.4"], known) == ["section 6.2.4"]


@given(st.text(st.characters(exclude_categories=()), max_size=400))
def test_any_text_is_searched(text):
    for name in identifiers(text) + numbers(text):
        assert 0 < len(name) <= 80
        assert any(char.isdigit() for char in name)
    without_asking(text)
    without_requests(text)


@given(st.lists(st.sampled_from(["ns3", "ns7", "e1", "article 4", "4.4.4", "x"]), max_size=6))
def test_what_is_known_is_never_absent(wanted):
    known = {"a9": frozenset({"ns3", "e1", "a2"}), "article 9": frozenset({"article 4", "article 5", "article 6"})}
    assert set(absent(wanted, known)) == {"ns7"} & set(wanted)


def test_requests_leave_what_they_are_about():
    assert without_requests("give me an overview of the hedging policy").split() == ["the", "hedging", "policy"]
    assert without_requests("Resume el régimen de sanciones").split() == ["el", "régimen", "de", "sanciones"]
    assert without_asking("น.ส.3ก คืออะไร").strip() == "น.ส.3ก"


@pytest.mark.parametrize("piece", ["a", "a-", "1.", "ก", "ก.", "a1", "9", "article "])
def test_long_runs_are_no_trap(piece):
    for reads in (identifiers, numbers):
        assert reads(piece * 100_000) is not None
