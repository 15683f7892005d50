from __future__ import annotations

import pytest
from answer_nodes import make_node
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.synthesis import PassageMatcher, assemble
from agentic_retriever.synthesis.checking import judge
from agentic_retriever.text import Tokenizer

TRAVEL = (
    "Taxis are paid after 21:00 and on Sundays. Meals cost at most EUR 60 per person. A trip of 8 people or more goes "
    "to the travel coordinator in Leeds. Alcohol is not reimbursed. The NS-5 probe was launched on 4 March 2021 by "
    "Maria Lopez. Sales rose by 12.5 percent to 68.4 million."
)
NORMA = (
    "La Agencia resuelve en un plazo de siete días hábiles desde el 4 de marzo de 2021. El certificado no se renueva "
    "después de la inspección. La tasa es de 1.250 coronas y se reduce un 30 %. Firma el director Ramón Ibarra."
)
DEED = (
    "โฉนดเลขที่ 10234 ออกเมื่อวันที่ 4 มีนาคม 2564 เนื้อที่ 7 ไร่ 1 งาน ผู้ถือกรรมสิทธิ์คือนายณรงค์ ทองเมืองมูล\n"
    "ที่ดินตั้งอยู่จังหวัดเชียงใหม่ ไม่มีภาระผูกพัน ราคาประเมิน 3,480,000 บาท"
)


def verdict(sentence: str, *texts: str, language: str = "en", **metadata):
    nodes = [make_node(text, start=0, doc_id=str(i), **metadata) for i, text in enumerate(texts)]
    tokenizer = Tokenizer(language)
    return judge(sentence, [PassageMatcher(p, tokenizer) for p in assemble(nodes, max_chars=10**6)], tokenizer)


@pytest.mark.parametrize(
    "sentence",
    [
        "Meals cost at most EUR 60 per person.",
        "Meals cost €60 per person at most.",
        "At most sixty euros per person are paid for meals that they cost.",
        "The NS-5 probe was launched on 2021-03-04 by Maria Lopez.",
        "Maria Lopez launched the NS-5 probe on March 4, 2021.",
        "The NS-5 probe was launched by Maria Lopez in March 2021.",
        "Sales rose by 12.5% to 68.4 million.",
        "Sales rose by 12,5 percent, to 68,400,000.",
        "A trip of eight people or more goes to the coordinator in Leeds.",
        "Alcohol isn't reimbursed.",
        "1. Taxis are paid on Sundays and after 21:00.",
    ],
)
def test_english_sentences_that_the_source_supports(sentence):
    found = verdict(sentence, TRAVEL)
    assert found.supported, found


@pytest.mark.parametrize(
    ("sentence", "problem"),
    [
        ("Meals cost at most EUR 80 per person.", "number 80 is not in the source"),
        ("Meals cost at most EUR 8 per person.", "number 8 is not in the source"),
        ("Meals cost at most USD 60 per person.", "name USD is not in the source"),
        ("Meals cost at most 60 percent per person.", "number 60 is not in the source"),
        ("The NS-5 probe was launched on 5 March 2021 by Maria Lopez.", "date 5 March 2021 is not in the source"),
        ("The NS-5 probe was launched on 2022-03-04 by Maria Lopez.", "date 2022-03-04 is not in the source"),
        ("The NS-5 probe was launched in May by Maria Lopez.", "date May is not in the source"),
        ("The NS-5 probe was launched on 4 March 2021 by Maria Perez.", "name Perez is not in the source"),
        ("The NS-3 probe was launched on 4 March 2021 by Maria Lopez.", "name NS-3 is not in the source"),
        ("Alcohol is reimbursed.", "says the opposite"),
        ("Taxis are not paid after 21:00 and on Sundays.", "says the opposite"),
        ("Sales fell by 12.5 percent to 68.4 million.", "says the opposite"),
        ("Sales rose by 12.5 percent to 68.4 billion.", "number 68.4 is not in the source"),
        ("A trip of nine people or more goes to the travel coordinator.", "number nine is not in the source"),
        ("Penguins prefer quiet libraries.", "too far from the text"),
    ],
)
def test_english_sentences_that_it_does_not(sentence, problem):
    found = verdict(sentence, TRAVEL)
    assert not found.supported
    assert problem in found.problems
    assert found.score <= 0.3


def test_a_clause_that_was_added_is_named():
    found = verdict("Meals cost at most EUR 60 per person, plus complimentary hotel breakfast buffets.", TRAVEL)
    assert found.problems == ("“plus complimentary hotel breakfast buffets” is not in the source",)


@pytest.mark.parametrize(
    ("sentence", "supported"),
    [
        ("La Agencia tiene 7 días hábiles para resolver desde el 2021-03-04.", True),
        ("La Agencia resuelve en siete días hábiles desde el 4 de marzo.", True),
        ("La tasa, de 1250 coronas, se reduce un 30 por ciento.", True),
        ("La Agencia resuelve en nueve días hábiles.", False),
        ("La Agencia resuelve en siete días hábiles desde el 4 de mayo de 2021.", False),
        ("El certificado se renueva después de la inspección.", False),
        ("El certificado no se renueva antes de la inspección.", False),
        ("Firma el director Ramón Ortega.", False),
        ("La tasa es de 1.520 coronas.", False),
    ],
)
def test_spanish(sentence, supported):
    found = verdict(sentence, NORMA, language="es")
    assert found.supported is supported, found


@pytest.mark.parametrize(
    ("sentence", "supported"),
    [
        ("โฉนดเลขที่ ๑๐๒๓๔ ออกเมื่อวันที่ 4 มี.ค. 2564", True),
        ("โฉนดเลขที่ 10234 ออกเมื่อวันที่ 2021-03-04", True),
        ("ผู้ถือกรรมสิทธิ์โฉนดเลขที่ 10234 คือนายณรงค์ ทองเมืองมูล", True),
        ("เนื้อที่เจ็ดไร่ 1 งาน", True),
        ("โฉนดเลขที่ 10234 ออกเมื่อวันที่ 4 มีนาคม 2565", False),
        ("เนื้อที่ 9 ไร่ 1 งาน", False),
        ("ผู้ถือกรรมสิทธิ์คือนายสมศักดิ์ มั่งคั่ง", False),
        ("ที่ดินตั้งอยู่จังหวัดลำพูน", False),
        ("มีภาระผูกพัน ราคาประเมิน 3,480,000 บาท", False),
    ],
)
def test_thai(sentence, supported):
    found = verdict(sentence, DEED, language="th")
    assert found.supported is supported, found


def test_chinese_is_compared_by_its_characters():
    source = "该公司于2021年3月4日成立,总部设在北京,员工三百人。"
    assert verdict("公司总部设在北京。", source, language="zh").supported
    assert not verdict("公司总部设在上海,员工喜欢打篮球和游泳。", source, language="zh").supported
    assert not verdict("该公司于2021年3月5日成立。", source, language="zh").supported


def test_german_nouns_are_no_names():
    source = "Die Reisekosten werden innerhalb von 14 Tagen erstattet. Anträge genehmigt die Leiterin Petra Vogel."
    assert verdict("Innerhalb von 14 Tagen erfolgt die Erstattung der Reisekosten.", source, language="de").supported
    found = verdict("Anträge genehmigt die Leiterin Petra Schmidt.", source, language="de")
    assert "name Schmidt is not in the source" in found.problems


def test_several_passages_support_a_sentence_together():
    one, other = "The plant in Leeds makes probes.", "The office in Utrecht sells monitors to cities."
    sentence = "The plant in Leeds makes probes, and the office in Utrecht sells monitors."
    assert verdict(sentence, one, other).supported
    assert not verdict(sentence, one).supported


def test_title_and_section_are_part_of_the_source():
    sentence = "In 2024 the margins of Northlight were very stable."
    assert not verdict(sentence, "Margins were stable.").supported
    assert verdict(sentence, "Margins were stable.", title="Northlight results 2024").supported


def test_a_number_elsewhere_in_the_passage_does_not_excuse_a_changed_one():
    text = "Team meals are limited to EUR 40 per person. Guests are limited to EUR 60 per person and evening."
    assert verdict("Guests are limited to EUR 60 per person and evening, at most.", text).supported
    assert not verdict("Guests are limited to EUR 40 per person and evening, at most.", text).supported


def test_a_fragment_without_the_negation_before_it_is_not_verbatim():
    assert not verdict("Expenses are reimbursed.", "No expenses are reimbursed.").supported
    assert verdict("No expenses are reimbursed.", "No expenses are reimbursed.").score == 1.0


def test_another_script_is_told_and_not_taken_for_support():
    found = verdict("ค่าอาหารไม่เกิน 60 ยูโรต่อคน", TRAVEL, language="th")
    assert not found.supported
    assert any("another script" in problem for problem in found.problems)


def test_without_a_passage_nothing_is_supported():
    assert verdict("Anything at all.").problems == ("no passage is cited",)


TEXTS = st.one_of(
    st.text(max_size=150),
    st.lists(
        st.sampled_from(
            [
                "not ", "No ", "EUR 48", "4 March 2021", " ไม่", "นายก", "สิบ", "1,000", "%", ". ", "CFO ", "May ",
                "𝟙", "²", "�", "5 de mayo", "twenty-", "one ", "中文", "2021年3月4日", "มีนาคม 2564", "|", "\n",
                "04/13/2021",
            ]
        ),
        max_size=20,
    ).map("".join),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(TEXTS, max_size=3), st.sampled_from(["und", "en", "es", "th", "de", "xx"]))
def test_any_texts_give_a_verdict(sentence, texts, language):
    found = verdict(sentence, *texts, language=language)
    assert 0.0 <= found.score <= 1.0
    assert found.supported is not bool(found.problems)
    assert found.supported or found.score <= 0.3


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 99_999), st.integers(2, 99_999))
def test_a_number_is_supported_just_when_it_is_the_one(one, other):
    found = verdict(
        f"The depot keeps a total of {other} spare probes.", f"The depot keeps {one} spare probes in total."
    )
    assert found.supported is (one == other)
