import hashlib
import json
import random
import re
import time
from unittest.mock import Mock

import numpy as np
import pytest
from answer_nodes import chunked, extract, make_node
from hypothesis import given, settings
from hypothesis import strategies as st
from store_tools import copied_store

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.errors import EmbeddingError
from agentic_retriever.sample import load_questions
from agentic_retriever.schema import Complexity
from agentic_retriever.synthesis import Extraction, ExtractiveSynthesizer, assemble
from agentic_retriever.synthesis.citations import shown
from agentic_retriever.synthesis.questions import NUMERIC, Question, coverage
from agentic_retriever.text import Tokenizer
from agentic_retriever.text.numbers import numbers_in


@pytest.mark.parametrize(
    ("query", "asks"),
    [
        ("How many units?", True), ("When does it begin?", True), ("Who approves it?", False),
        ("¿Cuántos días?", True), ("¿En qué año empezó?", True), ("¿Quién lo aprueba?", False),
        ("มีเนื้อที่กี่ไร่", True), ("เกี่ยวกับอะไร", False), ("多少钱", True),
        ("Wie viele Tage?", True), ("Wer war das?", False), ("Quand finit-il ?", True), ("Pourquoi ?", False),
        ("Сколько это стоит?", True), ("Почему так?", False),
        ("いつですか", True), ("なぜですか", False), ("为什么", False),
        ("What happens when it ends?", False), ("It ended when?", True), ("¿Qué pasa cuando acaba?", False),
        ("Que se passe-t-il quand il finit ?", False), ("Ab welcher Kernelversion geht das?", True),
        ("What frequency has it?", True), ("À partir de quelle tension ?", True), ("Welcher Druck ist es?", True),
        ("Welchen Ausdruck nutzt es?", False), ("¿Qué voltaje soporta?", True), ("Quale frequenza ha?", True),
        ("Qual é a tensão?", True), ("Welke spanning heeft het?", True), ("Какое давление?", True),
    ],
)  # fmt: skip
def test_questions_for_a_number_are_seen(query, asks):
    assert bool(Question.of(query, Tokenizer()).kinds & NUMERIC) is asks


@pytest.mark.parametrize("query", [
    "How old may a circuit be with standard settings?", "How are dates written unless told otherwise?",
    "Wie groß ist der Puffer in der Werkseinstellung?", "Quelle taille a-t-il, sauf indication contraire ?",
    "Si no elijo ninguna, ¿qué versión construye?", "Quanto è grande con le impostazioni di fabbrica?",
    "Qual é o tamanho com as definições de fábrica?", "Hoe groot is het in de fabrieksinstelling?",
])  # fmt: skip
def test_questions_for_what_holds_by_default_are_seen(query):
    assert "default" in Question.of(query, Tokenizer()).kinds


def test_the_number_of_a_table_is_no_figure_and_its_caption_no_sentence():
    text = "Die LDAP-Version und mehr von libnss-ldap steht in Tabelle 11.2.\n\nTabelle 11.2.\n\n"
    text += "| Frage | Antwort |\n| --- | --- |\n| Zu verwendende LDAP-Version | 3 |\n| Konto | cn=admin |\n"
    query = "Welche LDAP-Version hat libnss-ldap?"
    assert "version" in Question.of(query, Tokenizer("de")).kinds
    found = extract(query, [make_node(text)], "de", max_sentences=1)
    assert found.citations[0].quote == "| Zu verwendende LDAP-Version | 3 |"
    alone = extract("Tabelle?", [make_node("Tabelle 11.2.\n\nWorte.")], "de", max_sentences=1)
    assert [shown(one.quote) for one in alone.citations] == ["Worte."]
    assert extract("In which table is it?", [make_node("It is in table 11.2.")], max_sentences=1).citations


@pytest.mark.parametrize(("query", "first", "behind"), [
    ("Why is it no longer signed?", "It is no longer signed", "Nobody plans that"),
    ("How large is a header?", "A header is as large as it must be", "Most take 16 MB"),
])  # fmt: skip
def test_the_sentence_behind_the_best_comes_with_it_where_it_may_be_the_reason_or_has_the_figure(query, first, behind):
    answer = f"{first}{', as was said' * 12}. {behind}{', as was said' * 12}."
    node = make_node(f"{answer} It has a name{', as was said' * 12}.")
    assert shown(extract(query, [node], max_sentences=1).citations[0].quote) == answer


@pytest.mark.parametrize(("query", "kinds"), [
    ("Was zahlt ein Mitglied im Monat?", {"price"}), ("Was muss ein Mitglied im Jahr bezahlen?", {"price"}),
    ("Was ist das?", set()), ("Was it sold?", {"polar"}), ("Was the car new?", {"polar"}), ("Was het mooi?", {"polar"}),
])  # fmt: skip
def test_a_word_that_asks_in_one_language_asks_for_nothing_else_in_another(query, kinds):
    assert Question.of(query, Tokenizer()).kinds == kinds


def test_thousands_are_no_year():
    rows = [make_node("| HAWAII | 377 | 12 |"), make_node("| MAINE | 2,009 | 13 |", doc_id="other")]
    found = extract("How many were in Hawaii in 2009?", rows, max_sentences=1)
    assert found.citations[0].quote == "| HAWAII | 377 | 12 |"


def test_an_extract_without_the_figure_that_is_asked_for_has_less_support():
    query = "On which date was bc 1.07.1 released?"
    assert extract(query, [make_node("This is bc 1.07.1, released as all others.")]).support == 0.8
    assert extract(query, [make_node("Of bc 1.07.1, released on 7 April 2017.")]).support == 1
    assert extract("How many lamps are there?", [make_node("There are two lamps.")]).support == 1
    assert extract("What does a lamp cost?", [make_node("The list of lamps is of 18.10.2017.")]).support == 0.8
    assert extract("What does a lamp cost?", [make_node("A lamp costs 3 euros.")]).support == 1


def test_a_sentence_that_only_refers_to_the_section_asked_about_is_no_answer():
    refers = make_node("Before that it checks the archives (see Section 6.1, “How many releases are there?”).")
    holds = make_node("There are three of them at any time: stable, testing and unstable.", doc_id="other")
    found = ExtractiveSynthesizer(1).extract("How many releases are there?", assemble([refers, holds], max_chars=9_999))
    assert [citation.doc_id for citation in found.citations] == ["other"]


def test_a_word_alone_above_a_paragraph_heads_it_and_what_a_colon_announces_comes_with_it():
    text = "staff\n\nAllows users to add local changes without root.\n\nusers\n\nMembers of it are people."
    assert "Allows users" in extract("What is the staff group for?", [make_node(text, start=0)], max_sentences=1).text
    magic = "The bytes have these values:\n\n    FD 37 7A 58 5A 00\n\nDecoders must check them."
    assert "FD 37" in extract("What values do the bytes have?", [make_node(magic, start=0)], max_sentences=1).text


def test_what_holds_by_default_belongs_to_the_sentence_before_it():
    text = (
        "-fontsize N: Specify the point size of the letters around it. The default is 12.\n\n"
        "-glare N: Draw a glare around the sun with a radius of N. Larger values draw more. The default value is 28."
    )
    found = extract("How large is the glare around the sun unless I change it?", [make_node(text)], max_sentences=2)
    assert "28" in found.text
    assert "12" not in found.text
    text = "# DEFAULT\n\nThe server has many jobs; by default it is off.\n\n# Use\n\nThe default for the daemon is 20."
    for query in ("How many jobs does the daemon run by default?", "How many jobs does the daemon run if I give none?"):
        assert extract(query, [make_node(text, start=0)], max_sentences=1).text.startswith("The default for the daemon")
    text = "### RETURN (int; default 5)\n\nThe number of pairs to return.\n\n### GAP (int; default 1)\n\nPairs overlap."
    found = extract("How many pairs does it return by default?", [make_node(text, start=0)], max_sentences=1)
    assert found.text.startswith("RETURN (int; default 5) [2] The number of pairs")


def test_asking_words_of_unspaced_scripts_are_no_terms():
    terms = Question.of("ใครเป็นเจ้าของที่ดิน", Tokenizer("th")).terms
    assert not any("ใคร" in term for term in terms)
    assert any("ดิน" in term for term in terms)
    assert Question.of("อะไร", Tokenizer("th")).terms


def test_rare_terms_weigh_more_and_absent_ones_most():
    weights = Question.of("pump oil zebra", Tokenizer("en")).weights([{"pump", "oil"}, {"pump"}, {"pump"}, {"water"}])
    assert 0.5 <= weights["pump"] < weights["oil"] < weights["zebra"] == 1.0


def test_a_code_counts_once():
    question = Question.of("revenue in FY2024", Tokenizer("en"))
    whole, number = "fy2024", "2024"
    assert {whole, number} <= set(question.terms)
    assert number not in question.weights([{whole, number, "fy"}])
    in_parts = question.weights([{number}])
    assert whole not in in_parts
    assert number in in_parts


def test_coverage():
    assert coverage({}, {"a"}) == 0.0
    assert coverage({"a": 1.0, "b": 0.5}, {"a"}) == pytest.approx(2 / 3)
    assert coverage({"a": 1.0, "b": 0.5}, {"a", "b", "c"}) == 1.0


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
    assert handbook[0].node.text[citation.start : citation.end] == citation.quote
    assert (citation.title, citation.section, citation.page, citation.score) == ("Travel", "2 > 2.1", 3, 1.0)
    assert found.support == 1.0


def test_a_neighbour_that_adds_a_term_of_the_question_shares_the_number(handbook):
    found = extract("Who can approve a hotel night above EUR 140?", handbook)
    assert "A night may cost up to EUR 140. [1] Only the CFO can approve more. [1]" in found.text
    (citation,) = found.citations
    assert citation.quote.endswith("A night may cost up to EUR 140. Only the CFO can approve more.")


def test_a_table_row_is_found_by_its_own_words_and_counts_from_the_document(handbook):
    found = extract("What is the date of the unit sales plan?", handbook)
    assert found.text == "| Step | Owner | Date | [2]\n| Unit sales plan | Sales operations | 12 May 2025 | [1]"
    citation, head = found.citations
    assert head.quote == "| Step | Owner | Date |"
    assert handbook[1].node.text[citation.start - 100 : citation.end - 100] == citation.quote
    assert citation.start > 100


LAMPS = """## 6.1. Luz de carretera

#### 6.1.2. Número

Dos o cuatro. Los vehículos N3 pueden llevar dos más.

## 6.2. Luz de cruce

#### 6.2.1. Presencia

Obligatoria en todo vehículo que puede circular de noche.

#### 6.2.2. Número

Dos.

#### 6.2.6. Conexiones eléctricas

Las luces de cruce pueden seguir encendidas con las de carretera."""


def test_a_very_short_sentence_answers_below_a_heading_that_carries_the_words():
    found = extract("¿Cuántas luces de cruce hay?", [make_node(LAMPS, start=0, title="Alumbrado")], "es")
    assert found.citations[0].quote == "Dos."


@pytest.mark.parametrize("name", ["## --tries\n", "--tries\n\n", "- ‘--tries’\n\n", "###### tries = 9;\n"])
def test_an_option_or_term_is_quoted_with_what_it_does(name):
    text = f"Many words here.\n\n{name}(Seldom) Fetch this often.\n\nBoats.\n\nHosts are slow."
    found = extract("How often does it fetch?", [make_node(text, start=0)], max_sentences=1)
    label = name.strip("#\n ").removeprefix("- ")
    assert [citation.quote for citation in found.citations] == ["(Seldom) Fetch this often.", label]
    assert found.text == f"{label} [2] (Seldom) Fetch this often. [1]"
    assert "tries" not in extract("Who has many words?", [make_node(text, start=0)], max_sentences=1).text


def test_a_duration_in_words_is_one_and_an_interval_that_is_named_a_frequency():
    text = "Members of the board serve 9 boats.\n\nRain fell.\n\nMembers of the board serve for two years."
    found = extract("How long do members of the board serve?", [make_node(text, start=0)], max_sentences=1)
    assert found.citations[0].quote.endswith("two years.")
    text = "The pump can save a log. A log is written every save interval."
    found = extract("How often does the pump save a log?", [make_node(text, start=0)], max_sentences=1)
    assert found.text.startswith("A log")


def test_a_number_below_a_heading_that_names_a_duration_is_none():
    text = "## Interval of an entry\n\nSee page 212.\n\n## Keeping\n\nAn entry of the base is valid for 24 hours."
    assert extract("How long is an entry valid?", [make_node(text, start=0)]).citations[0].quote.endswith("24 hours.")


def test_a_number_of_what_is_counted_goes_before_another_and_a_figure_in_a_heading_is_quoted():
    text = "Give 4 chrony clocks a safe side.\n\nRain fell.\n\nA client of chrony has at least three servers."
    found = extract("How many servers should I give chrony?", [make_node(text, start=0)], max_sentences=1)
    assert found.citations[0].quote.endswith("three servers.")
    text = "On top:\n\n```tex\n% !TeX program\n```\n\nRain fell."
    assert extract("What is on top?", [make_node(text, start=0)], max_sentences=1).text.startswith("On top: [1] % !TeX")
    text = "## 2. Changes in version 6.6.0\n\nThe chord grid is new."
    found = extract("Which version brought the chord grid?", [make_node(text, start=0)], max_sentences=1)
    assert found.text == "Changes in version 6.6.0 [2] The chord grid is new. [1]"
    text = "## whitelist\n\nA list for those who are no spammers."
    assert extract("Which list is for no spammers?", [make_node(text, start=0)]).text.startswith("whitelist [2] A list")
    text = "## Release 3.1 [11 Feb 2025]\n\nRelease 3.1 mends 2 faults."
    found = extract("When was release 3.1 published?", [make_node(text, start=0)], max_sentences=1)
    assert found.text.startswith("Release 3.1 [11 Feb 2025] [2]")


def test_how_many_of_a_unit_is_answered_by_its_symbol_and_how_to_do_something_by_all_steps():
    text = "The climb takes 4 days.\n\nThe climb: 1890 m."
    found = extract("How many metres is the climb?", [make_node(text, start=0)], max_sentences=1)
    assert found.citations[0].quote.endswith("The climb: 1890 m.")
    hold = "Press the button until its light goes from blue to pink, " + "and hold on, " * 8 + "so that it blinks."
    steps = f"- {hold} It takes three seconds.\n- Join the hotspot of the clock.\n- Open its page and save."
    nodes = [make_node(f"To switch Wi-Fi, follow these steps:\n\n{steps}", start=0)]
    asked = (f"{way} join the hotspot of the clock?" for way in ("How can I", "Can I"))
    assert ["three seconds" in extract(one, nodes, max_sentences=1).text for one in asked] == [True, False]


def test_a_version_tells_no_passage_from_another():
    texts = ["Trademarks are never free.", "Use of the licence 4.0 is free."]
    nodes = [make_node(text, doc_id=text) for text in texts]
    found = extract("Are trademarks free under 4.0?", nodes, max_sentences=1)
    assert [citation.doc_id for citation in found.citations] == texts[:1]


@pytest.mark.parametrize("asked", ["How do I renew the pump seals?", "Q: I want to renew the pump seals."])
def test_a_question_in_the_text_heads_its_answer_and_is_not_quoted(asked):
    text = f"{asked}\nTake the kit of the depot. It holds all parts.\n\nWho pays?\nThe owner."
    found = extract("How do I renew the pump seals?", [make_node(text, start=0)])
    assert "renew" not in found.text
    assert found.text.startswith("Take the kit of the depot.")


def test_the_best_evidence_comes_first_and_a_model_reads_it_first():
    nodes = [
        make_node("The pumps are blue. They stand in the yard.", start=0, doc_id="a"),
        make_node("Alpha pumps need oil of kind 7 every month.", start=0, doc_id="b"),
    ]
    found = extract("Which kind of oil do alpha pumps need every month?", nodes)
    assert found.citations[0].doc_id == "b"
    assert found.ranking == (2, 1)


def test_sentences_are_of_several_passages_that_are_nearly_as_good_and_of_one_that_stands_far_above():
    texts = ["Boats are of wood.", "Bread is baked at night.", "Pumps need oil. Pumps are loud.", "Pumps drink water."]
    found = extract("pumps", [make_node(text, doc_id=text) for text in texts], max_sentences=2)
    assert [citation.doc_id for citation in found.citations] == texts[2:]
    first = "Valves of a boiler open by pressure. Springs of the boiler shut them again."
    second = "Shut the valves of a boiler for a test."
    for score, cited in ((0.95, {first, second}), (0.1, {first})):
        scores = {first: 1.0, second: score, "Rain.": 0.0}
        nodes = [make_node(text, doc_id=text).model_copy(update={"score": at}) for text, at in scores.items()]
        found = extract("How do valves of a boiler open and shut?", nodes, max_sentences=2)
        assert {citation.doc_id for citation in found.citations} == cited


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
    text = "Levels are:\n\nHigh:\n\n- Code execution\n\nModerate:\n\n- Denial of service\n- Files of others\n\nRain."
    found = extract("Under which level is denial of service?", [make_node(text, start=0)], max_sentences=1)
    assert found.text == "Moderate: [2] Denial of service [1]"
    found = extract("Which files are there beside denial of service?", [make_node(text, start=0)], max_sentences=1)
    assert found.text == "Moderate: [2] Denial of service [1] Files of others [1]"
    text = "These are not saved yet\n\n- sieve scripts\n- quotas\n\nThe archive is saved."
    found = extract("Are the sieve scripts saved?", [make_node(text, start=0)], max_sentences=1)
    assert found.text == "These are not saved yet [2] sieve scripts [1] quotas [1]"
    text = "Ways to paint it are:\n\n- The red one. It is old.\n\n- The blue one. It is new.\n\nRain. It falls."
    found = extract("Which ways to paint it are there?", [make_node(text, start=0)], max_sentences=1)
    assert found.text == "Ways to paint it are: [1] The red one. [1] The blue one. [2]"
    text = "Translations came for these languages:\n\nGeorgian, by Ann.\nDutch, by Bo.\n\nRain. It falls."
    found = extract("For which languages did translations come?", [make_node(text, start=0)], max_sentences=1)
    assert found.text == "Translations came for these languages: [1] Georgian, by Ann. [1] Dutch, by Bo. [1]"


LOG = (
    "## [3.2.0] - 2023-01-03\n\n### Added\n\n- Prefixes ronna and quecto (issue 629).\n\n### Fixed\n\n- A crash.\n\n"
    "## [3.1.0] - 2022-05-05\n\n### Added\n\n- Prefixes of bits (issue 512).\n"
    "\nNew tools:\n\n- A spinning wheel.\n\n# 2.0 2019/02\n\n- Gloves of felt.\n"
)


@pytest.mark.parametrize(("query", "start"), [
    ("When did the prefixes ronna and quecto come?", "[3.2.0] - 2023-01-03 [2] Prefixes ronna"),
    ("Which version has the prefixes ronna and quecto?", "[3.2.0] - 2023-01-03 [2] Prefixes ronna"),
    ("In welcher Version kamen die prefixes of bits?", "[3.1.0] - 2022-05-05 [2] Prefixes of bits"),
    ("¿Qué versión tiene los prefixes of bits?", "[3.1.0] - 2022-05-05 [2] Prefixes of bits"),
    ("Which version brought a spinning wheel?", "[3.1.0] - 2022-05-05 [2] A spinning wheel."),
    ("In which version did gloves of felt come, and how many?", "2.0 2019/02 [2] Gloves of felt."),
    ("Are there prefixes ronna and quecto?", "Prefixes ronna"),
])  # fmt: skip
def test_a_date_or_version_is_that_of_the_heading_of_a_change_log(query, start):
    found = extract(query, [make_node(LOG, start=0)], max_sentences=1)
    assert found.text.startswith(start)


def test_a_sentence_that_only_repeats_the_question_is_quoted_with_what_follows():
    text = "WinBoard does not run on Windows 3.1. WinBoard would need threads to run in.\n\nIt rains."
    found = extract("Why does WinBoard not run on Windows 3.1?", [make_node(text, start=0)], max_sentences=1)
    assert "would need threads" in found.text
    assert "rains" not in found.text
    text = "WinBoard does not run on Windows 3.1 because threads are missing. It is for those who play.\n\nIt rains."
    found = extract("Why does WinBoard not run on Windows 3.1?", [make_node(text, start=0)], max_sentences=1)
    assert found.text == "WinBoard does not run on Windows 3.1 because threads are missing. [1]"
    text = "Algorithm used to compress the log. The algorithm is zlib or zstd.\n\nIt rains."
    found = extract("Which algorithm is used to compress the log?", [make_node(text, start=0)], max_sentences=1)
    assert found.text == "Algorithm used to compress the log. [1] The algorithm is zlib or zstd. [1]"


def test_a_paragraph_that_ends_with_a_question_heads_its_answer():
    asked = "My image is all white. Yet the colour bar works?"
    text = f"Fonts are in a menu.\n\n{asked}\n\nThe limits in the head of an image may be wrong.\n\nIt rains."
    found = extract("Why is my image all white?", [make_node(text, start=0)], max_sentences=1)
    assert found.text.startswith("The limits in the head of an image may be wrong. [1]")


def test_what_is_no_marker_of_ours_is_shown_as_it_stands():
    assert shown("It is in the\n range [0; 3], see [2] and [[12]].") == "It is in the range [0; 3], see (2) and [(12)]."


def test_records_that_lack_the_number_asked_for_are_not_mixed_in():
    nodes = [
        make_node(f"โฉนดเลขที่ {n}\nเนื้อที่ {n % 7} ไร่\nตั้งอยู่อำเภอแม่ริม", start=0, doc_id=str(n), title=f"โฉนดเลขที่ {n}")
        for n in (10235, 10234, 10236)
    ]
    found = extract("โฉนดเลขที่ 10234 มีเนื้อที่กี่ไร่", nodes, "th")
    assert {c.doc_id for c in found.citations} == {"10234"}
    assert "เนื้อที่ 0 ไร่" in found.text


@pytest.mark.parametrize(("other", "first"), [("", "Linear currents are 5 to 20 mA."), ("The IL301: ", "The IL300 ")])
def test_a_document_on_a_code_need_not_repeat_it_where_it_names_no_other(other, first):
    texts = f"{other}Linear currents are 5 to 20 mA.", "The IL300 couples light and currents."
    nodes = [make_node(text, start=at * 99) for at, text in enumerate(texts)]
    assert extract("At which currents is the IL300 linear?", nodes, max_sentences=1).text.startswith(first)


def test_who_is_asked_for_by_another_word_is_found_by_its_title():
    owner = "ผู้ถือกรรมสิทธิ์คือนางสาวกานดา แก้วไพรสณฑ์"
    mine = f"เนื้อที่ 7 ไร่ 1 งาน 0 ตารางวา ทางเข้าเป็นถนนลาดยาง\n{owner}\nไม่เคยมีประวัติน้ำท่วมในบริเวณนี้เลย"
    other = "นายปรีดา บุญร่มเย็น เป็นเจ้าของที่ดินตามโฉนดเลขที่ 34364"
    nodes = [make_node(mine, start=0, doc_id="a", title="โฉนดเลขที่ 10234"), make_node(other, start=0, doc_id="b")]
    found = extract("โฉนดเลขที่ 10234 ใครเป็นเจ้าของ", nodes, "th")
    assert "ผู้ถือกรรมสิทธิ์คือนางสาวกานดา แก้วไพรสณฑ์ [1]" in found.text


@pytest.mark.parametrize(
    ("query", "answer", "noise"),
    [
        ("How long is the warranty?", "The warranty lasts 24 months.", "The warranty covers all parts of the pump."),
        ("When was the pump warranty changed?", "The pump warranty was changed in March 2021.",
         "The warranty for the pump was much changed."),
        ("¿Cuánto cuesta la garantía?", "La garantía cuesta 120 coronas.", "La garantía cubre todas las piezas."),
        ("¿Quién firma la garantía?", "La garantía la firma Ana Torres.", "La garantía cubre las piezas del equipo."),
        ("Why did the warranty end?", "The warranty ended because it aged.", "The warranty end was announced early."),
        ("How often should I oil the pump?", "The pump is oiled every second week.", "I should oil 12 pumps."),
        ("Quels états prend la pompe ?", "On a : prête, arrêtée, en marche ou usée.", "La pompe prend ses états."),
        ("At what temperature is the fan turned on?", "On the X40 the fan is turned on at 56 degrees.",
         "The fan is turned off when the temperature is 49 degrees."),
        ("¿Cuánta sal lleva la masa?", "A la masa se le echan dos cucharadas de sal.", "La sal de la masa lleva yodo."),
    ],
)  # fmt: skip
def test_the_kind_of_answer_counts(query, answer, noise):
    found = extract(query, [make_node(f"{noise} {answer}", start=0)], max_sentences=1)
    assert answer in found.text


@pytest.mark.parametrize(
    ("language", "query", "source", "answer"),
    [
        ("th", "ปั๊มน้ำรับประกันกี่เดือน", "ปั๊มน้ำทำจากเหล็กกล้าไร้สนิมทั้งตัวเครื่อง\nปั๊มน้ำรับประกัน 24 เดือนนับจากวันซื้อ", "24 เดือน"),
        ("zh", "水泵保修多少个月", "水泵由不锈钢制成。水泵保修期为24个月。天气很好。", "24个月"),
        ("ja", "ポンプの保証は何年ですか", "ポンプは鉄でできています。ポンプの保証は3年です。", "3年"),
        ("ko", "펌프의 보증 기간은 몇 년인가요?", "펌프는 철로 만들었습니다. 펌프의 보증 기간은 3년입니다.", "3년"),
        ("ar", "ما هي مدة ضمان المضخة؟", "المضخة مصنوعة من الفولاذ. مدة ضمان المضخة 24 شهرا. الطقس جميل.", "24 شهرا"),
        ("hi", "पंप की वारंटी कितने महीने की है?", "पंप स्टील का बना है। पंप की वारंटी 24 महीने की है। मौसम अच्छा है।", "24 महीने"),
        ("ru", "Какова гарантия на насос?", "Насос сделан из стали. Гарантия на насос 24 месяца. Погода хорошая.",
         "24 месяца"),
    ],
)  # fmt: skip
def test_every_script_is_quoted_exactly(language, query, source, answer):
    found = extract(query, [make_node(source, start=0)], language)
    assert answer in found.text
    assert all(source[c.start : c.end] == c.quote for c in found.citations)


def test_each_part_of_a_question_gets_its_sentence():
    text = (
        "The purchase request is signed by the department head. Invoices are kept in the archive. "
        "The vendor security check comes before the signature. Cables are cheap. "
        "An approval stays valid for 12 months."
    )
    query = "Who has to sign the request, which vendor check comes first, and how long does the approval stay valid?"
    found = extract(query, [make_node(text, start=0)], complexity=Complexity.COMPLEX)
    for said in ("signed by the department head", "vendor security check", "12 months"):
        assert said in found.text
    assert "Cables" not in found.text


def test_a_list_of_documents_has_one_sentence_of_each_that_says_which_it_is():
    numbers = ["13564", "92473", "31220", "23871", "23681"]
    text = "Plot {0} lies by a road. Deed number {0} is in Chonburi. A well was dug."
    nodes = [make_node(text.format(n), start=0, doc_id=n, title=f"Deed number {n}") for n in numbers]
    found = extract("Find plots in Chonburi", nodes)
    assert [c.doc_id for c in found.citations] == numbers
    assert all(c.doc_id in c.quote for c in found.citations)


def test_an_overview_takes_what_opens_the_sections_and_no_table_rows():
    sections = [
        "The handbook explains how trips are booked and paid. Keep the receipts. | a | 1 |",
        "Hotels are booked by the travel desk for all trips. Breakfast may be eaten.",
        "Trips abroad need a travel permit and a booking by the desk. Bring a hat.",
    ]
    nodes = [make_node(text, start=i * 1000, doc_id="d") for i, text in enumerate(sections)]
    found = extract("Give me an overview of the travel handbook", nodes, max_sentences=3)
    assert "The handbook explains" in found.text
    assert len(parts(found)) == 3
    assert not any(sentence.startswith("|") for sentence, _ in parts(found))


def test_a_sentence_that_points_back_brings_the_one_before_it():
    text = "The reserve is held by the treasury. This may be released by the CFO in an emergency. Oil is black."
    found = extract("Who may release it in an emergency?", [make_node(text, start=0)], max_sentences=1)
    assert found.text.startswith("The reserve is held by the treasury. [1] This may be released")
    text = "Fill the disk with a huge file. Leave it to grow. By doing this you reallocate bad sectors. Oil is black."
    found = extract("How do I reallocate bad sectors?", [make_node(text, start=0)], max_sentences=1)
    assert found.text.startswith("Fill the disk")
    text = (
        "It rains, because of clouds.\n\nNo image:\n\n- Removed image\n\nThe image is gone. This was decided because "
        "it became hard.\n\nAn image of the moon hangs above the door, where all can see it who enter."
    )
    found = extract("Why is there no image?", [make_node(text, start=0)], max_sentences=2)
    assert "The image is gone. [1] This was decided because it became hard." in found.text


def test_a_sentence_that_does_not_say_all_is_quoted_with_what_stands_around_it_in_its_section():
    text = "A bug has a severity level. The level is critical, grave or minor.\n\n# Other\n\nBugs are closed by mail."
    found = extract("What severity level can a bug of the server have?", [make_node(text, start=0)], max_sentences=1)
    assert found.text == "A bug has a severity level. [1] The level is critical, grave or minor. [1]"
    whole = make_node("Bugs are closed by mail. Oil is black.", start=0)
    found = extract("How is a bug closed?", [whole], max_sentences=1)
    assert found.text == "Bugs are closed by mail. [1]"
    text = "-r N: Send the reason code of the packet. By default, 7 is used.\n\n| Code |\n| --- |\n| 7 |"
    found = extract("Which reason code is sent unless I choose one?", [make_node(text, start=0)], max_sentences=1)
    assert found.text.endswith("By default, 7 is used. [1]")
    text = "| Day | What |\n| --- | --- |\n| 1 | severity |\n\nA bug has a severity level of its own."
    found = extract("What severity level can a bug of the server have?", [make_node(text, start=0)], max_sentences=1)
    assert found.text == "A bug has a severity level of its own. [1]"


LAMPS_BY_KIND = """# Anexo

### 6.1. Luz de carretera

#### 6.1.2. Número

Dos o cuatro. Los vehículos N3 pueden llevar dos más.

### 6.2. Luz de cruce

#### 6.2.2. Número

Dos. En L1 se admite una.

#### 6.2.3. Disposición

En altura, entre 520 mm y 1180 mm sobre el suelo."""


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("¿Cuántas luces de cruce puede llevar un vehículo?", "Dos. [1] En L1"),
        ("¿Cuántas luces de carretera puede llevar un vehículo?", "Dos o cuatro."),
        ("¿A qué altura está la luz de cruce?", "En altura, entre 520 mm"),
    ],
)
def test_of_several_sections_number_the_one_counts_that_is_on_the_subject_and_only_for_counts(query, expected):
    assert extract(query, [make_node(LAMPS_BY_KIND, start=0, title="Anexo")], "es").text.startswith(expected)


def test_of_rows_that_share_words_the_one_is_taken_that_has_one_of_its_own():
    rows = "".join(f"| zip2 fast={i} | {500 + i} MB/s | {1700 + i} MB/s |\n" for i in range(6))
    table = f"| Program | Packs | Unpacks |\n|---|---|---|\n{rows}| lz9 | 740 MB/s | 4500 MB/s |"
    found = extract("What does lz9 reach in the zip2 table?", [make_node(table, start=0)])
    assert [row for row, _ in parts(found)] == ["| Program | Packs | Unpacks |", "| lz9 | 740 MB/s | 4500 MB/s |"]
    table = "My script has returned a code.\n\n| Code | Says |\n|---|---|\n| 5 | failed |\n| 6 | refused requests |"
    asked = ("My script returned code 6. What does that mean?", "Which requests are refused at 5 V?")
    assert all("refused" in extract(query, [make_node(table, start=0)], max_sentences=1).text for query in asked)
    table = "| Switch | Variable | Sets |\n|---|---|---|\n| -a | ALL | the program variable |\n| `-o`,`-p` | ONE | it |"
    found = extract("Which program variable does the -o switch set?", [make_node(table, start=0)], max_sentences=1)
    assert "ONE" in found.text


def test_yes_or_no_answers_a_question_for_it_and_no_question_is_quoted():
    text = (
        "2.4. Must I name servers by address if names are not known\nwhen the daemon starts?\n\n"
        "No, the daemon keeps trying to look them up. Servers have names. Does the daemon name servers by address?"
    )
    found = extract("Do I have to name the servers by address when the daemon starts?", [make_node(text, start=0)])
    assert found.text.startswith("No, the daemon keeps trying")
    assert "?" not in found.text
    text = "Q: Is it kept?\n\nA: No, it is not. Names live long. The cache of the daemon is lost at a restart."
    assert "A: No" in extract("Does the daemon keep the cache at a restart?", [make_node(text)], max_sentences=1).text


def test_reading_order_is_documents_by_rank_then_place():
    first = make_node("Alpha pumps need oil. Water is wet. Alpha pumps need filters, too.", start=0, doc_id="z")
    second = make_node("The alpha pumps are serviced with new seals.", start=0, doc_id="a")
    found = extract("What do alpha pumps need?", [first, second], complexity=Complexity.COMPLEX)
    assert [c.number for c in found.citations] == list(range(1, len(found.citations) + 1))
    assert [c.doc_id for c in found.citations] == sorted((c.doc_id for c in found.citations), key="za".index)
    starts = [c.start for c in found.citations if c.doc_id == "z"]
    assert starts == sorted(starts)


def test_the_same_sentence_in_two_nodes_is_said_once_and_no_more_than_the_most_sentences():
    nodes = [make_node(f"Pumps need oil. Extra {i}.", start=0, doc_id=str(i)) for i in range(3)]
    assert extract("What do pumps need?", nodes).text.count("Pumps need oil.") == 1
    text = " ".join(f"The pump number {i} needs oil of kind {i * 7}." for i in range(20))
    found = extract("pump oil kind", [make_node(text, start=0)], max_sentences=2, complexity=Complexity.COMPLEX)
    assert len(parts(found)) == 2


def test_without_a_shared_term_the_best_node_begins_with_low_support():
    nodes = [make_node("First one. Second one. Third one.", start=0), make_node("Other.", doc_id="b")]
    found = extract("Wozu dient das?", nodes, "de")
    assert found.text == "First one. [1] Second one. [1]"
    assert found.support < 0.5


@pytest.mark.parametrize("query", ["", "   ", "???", "\ud800", "x" * 100_000, "[1] {0} %s"])
def test_any_query_gives_an_extraction(handbook, query):
    assert extract(query, handbook).text


def test_only_headings_are_better_than_nothing_and_no_passage_gives_nothing():
    assert extract("meals", [make_node("# Meals", start=0)]).text == "# Meals [1]"
    found = extract("q", [])
    assert (found.text, found.citations) == ("", ())


def test_a_sources_own_reference_cannot_pass_for_a_citation():
    found = extract("Who wrote of pumps?", [make_node("Pumps were described by Smith [7] long ago.", start=0)])
    assert found.text == "Pumps were described by Smith (7) long ago. [1]"
    assert found.citations[0].quote == "Pumps were described by Smith [7] long ago."


def test_the_number_of_embedded_sentences_is_bounded():
    asked: list[int] = []

    def embed(texts: list[str]) -> np.ndarray:
        asked.append(len(texts))
        return np.ones((len(texts), 2))

    texts = [" ".join(f"Pump {i} of {j} needs oil." for i in range(30)) for j in range(8)]
    nodes = [make_node(text, start=0, doc_id=str(j)) for j, text in enumerate(texts)]
    extract("Which pump needs oil?", nodes, embed=embed, query_vector=[1.0, 0.0])
    assert asked == [22]


def _axis(texts: list[str]) -> np.ndarray:
    return np.array([[1.0, 0.0] if "seals" in text else [0.0, 1.0] for text in texts])


def test_vectors_rescore_where_words_say_nothing():
    nodes = [make_node("Oil is black. Water is wet.", start=0), make_node("New seals fit.", start=0, doc_id="b")]
    found = extract("¿Qué juntas?", nodes, "es", embed=_axis, query_vector=[1.0, 0.0])
    assert (found.text, found.support) == ("New seals fit. [1]", 1.0)
    assert found.degraded == ()


@pytest.mark.parametrize(
    "embed",
    [
        Mock(side_effect=EmbeddingError("the embedding model failed")), lambda texts: "not an array",
        lambda texts: np.full((len(texts), 2), np.nan), lambda texts: np.ones((len(texts) + 1, 2)),
        lambda texts: np.ones((len(texts), 3)),
    ],
)  # fmt: skip
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
                "The pump needs oil.", "Pumps [3] need\n  filters!", "# Heading",
                "| a | b |\n|---|---|\n| pump | 7 |", "- item of the pump", "ปั๊มน้ำต้องใช้น้ำมัน 5 ลิตร",
                "泵需要油。每年一次。", "\n\n", "[1][2]", "x" * 700, "Needed are:",
            ]
        ),
        max_size=8,
    ).map("\n".join),
)  # fmt: skip


QUERIES = ["what does the pump need?", "list pumps and oil, then filters", "overview", "[1]", ""]
QUERIES += ["ปั๊มใช้น้ำมันกี่ลิตร", "泵需要什么"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(TEXTS, st.lists(st.integers(0, 400), max_size=3)), min_size=1, max_size=3),
    st.sampled_from(QUERIES),
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
    said = [sentence for sentence, _ in parts(found)]
    assert len(said) == len(set(said))


def test_eight_nodes_of_512_tokens_are_fast():
    sentence = "The pump number {} needs oil of kind {} and a filter every {} months of service. "
    texts = ["".join(sentence.format(i, i * j, j) for i in range(30)) for j in range(8)]
    nodes = [make_node(text, start=0, doc_id=str(j)) for j, text in enumerate(texts)]
    passages = assemble(nodes, max_chars=10**6)
    synthesizer = ExtractiveSynthesizer()
    synthesizer.extract("pump oil", passages, language="en")
    times = []
    for _ in range(5):
        started = time.perf_counter()
        synthesizer.extract("Which oil does pump number 7 need?", passages, language="en")
        times.append(time.perf_counter() - started)
    # The target is 0.06 s; the rest is room for a busy machine.
    assert min(times) < 0.2


def held_out(key: str) -> bool:
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2 == 1


@pytest.mark.shared_data
@pytest.mark.parametrize(("language", "floor"), [("en", 0.88), ("es", 0.86), ("th", 0.76)])
def test_short_answers_of_wikipedia_are_quoted(shared_data, language, floor):
    """The gold paragraph among the five nearest; words only."""
    folder = shared_data / "collections" / f"xquad-{language}"
    docs = {d["_id"]: d for d in map(json.loads, (folder / "corpus.jsonl").read_text("utf-8").splitlines())}
    queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text("utf-8").splitlines()]
    lines = (folder / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]
    gold = {line.split("\t")[0]: line.split("\t")[1] for line in lines}
    with np.load(shared_data / "embeddings" / "multilingual-e5-small" / f"xquad-{language}.npz") as packed:
        ids, of_docs = packed["doc_ids"].tolist(), packed["doc_vectors"].astype(np.float32)
        of_queries = dict(zip(packed["query_ids"].tolist(), packed["query_vectors"].astype(np.float32), strict=True))
    asked = [q for q in random.Random(3).sample(queries, 200) if held_out(q["_id"])]
    quoted = from_gold = 0
    for query in asked:
        nearest = [ids[i] for i in np.argsort(-(of_docs @ of_queries[query["_id"]]))[:5]]
        if gold[query["_id"]] not in nearest:
            nearest[-1] = gold[query["_id"]]
        nodes = [make_node(docs[i]["text"], start=0, doc_id=i, title=docs[i].get("title", "")) for i in nearest]
        found = ExtractiveSynthesizer().extract(query["text"], assemble(nodes, max_chars=10**6), language=language)
        quoted += " ".join(query["metadata"]["answer"].lower().split()) in " ".join(found.text.lower().split())
        from_gold += any(c.doc_id == gold[query["_id"]] for c in found.citations)
        assert all(docs[c.doc_id]["text"][c.start : c.end] == c.quote for c in found.citations)
    assert quoted / len(asked) >= floor
    assert from_gold / len(asked) >= 0.95


def test_figures_of_the_sample_are_quoted_and_what_is_not_there_is_declined(sample_store, tmp_path, local_embedding):
    odd = [q for q in load_questions() if int(q["id"][-3:]) % 2 == 1]
    asked = [q for q in odd if q["answerable"]]
    shares, cited = [], 0
    config = RouterConfig(data_dir=copied_store(sample_store, tmp_path / "data"), answer_rescoring=False)
    with AgenticRouter(config, embedding=local_embedding) as router:
        for question in asked:
            retrieval = router.retrieve(question["query"])
            passages = assemble(retrieval.nodes, max_chars=200_000)
            asking = {"language": question["language"], "complexity": retrieval.route.complexity}
            found = ExtractiveSynthesizer().extract(question["query"], passages, **asking)
            cited += bool({c.doc_id for c in found.citations} & set(question["doc_ids"]))
            if figures := numbers_in(question["answer"]):
                shares.append(len(figures & numbers_in(found.text)) / len(figures))
        # Without anything declined before retrieval, confidence alone must tell what cannot be answered.
        unanswerable = [q for q in odd if not q["answerable"]]
        declined = sum(router.query(q["query"]).confidence.level.value == "not_found" for q in unanswerable)
        wrongly = sum(router.query(q["query"]).confidence.level.value == "not_found" for q in asked)
    assert declined / len(unanswerable) >= 0.7
    assert wrongly / len(asked) <= 0.3
    assert cited / len(asked) >= 0.85
    assert sum(shares) / len(shares) >= 0.5
