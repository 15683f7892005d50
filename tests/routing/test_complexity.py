from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import ConfigError
from agentic_retriever.routing import assess_complexity, complexity_reasons
from agentic_retriever.routing.signals import (
    SECOND_NAME,
    THIRD_NAME,
    hop_cues,
    load_table,
    matching_form,
    parse_table,
    question_count,
    read_query,
    table_languages,
)
from agentic_retriever.schema import Complexity
from agentic_retriever.text.language_files import language_files

# Written before the cues of their languages, and not used to choose any of them.
SPANISH_TWO_STEPS = (
    "¿De qué nacionalidad es el director de la película que protagonizó Penélope Cruz en 2006?",
    "¿En qué ciudad nació el arquitecto que diseñó el puente más largo de Portugal?",
    "¿Son Sevilla y Cádiz capitales de la misma comunidad?",
    "¿Qué revista se fundó antes, Hola o Semana?",
    "¿Quién es el autor de la novela en la que se basa la serie rodada en Lekeitio?",
    "¿Qué río atraviesa la ciudad donde murió el pintor del cuadro Las Meninas?",
    "¿Cuántos habitantes tiene la capital del país cuya selección ganó el Mundial de 1950?",
    "¿Fueron Rosalía de Castro y Emilia Pardo Bazán ambas gallegas?",
    "¿En qué universidad estudió la fundadora de la empresa que fabrica los motores del tren Avril?",
    "¿Quién interpreta al hermano del protagonista en la película dirigida por Víctor Erice?",
    "¿Qué montaña es más alta, el Aneto o el Mulhacén?",
    "¿Cómo se llama el club, fundado en 1905, en el que jugó el padre del entrenador del Betis?",
    "¿A qué partido pertenecía el alcalde que inauguró el museo situado junto a la ría de Bilbao?",
    'El batería del grupo que grabó el disco "Agua dulce" tocó antes, ¿en qué orquesta?',
    "¿Cuál de las dos hermanas de Manuel Alcántara escribió la letra del himno de Rincón?",
)

SPANISH_ONE_STEP = (
    "¿Cuándo se inauguró el tranvía de Zaragoza?",
    "¿Qué altura tiene la torre del reloj?",
    "¿Cuántas personas caben en el teatro?",
    "¿Quién escribió la primera gramática del euskera?",
    "¿Qué come el lince ibérico?",
    "¿Por qué calle pasa la cabalgata?",
    "¿Qué se necesita para renovar el pasaporte?",
    "¿Dónde se guardan las llaves del almacén de pinturas?",
    "¿Cuánto tarda en hervir un litro de agua?",
    "¿Qué documentos pide el banco para abrir una cuenta?",
    "¿Qué edad tenía la reina Isabel cuando subió al trono?",
    "¿Cómo se llama el lago más profundo de Nicaragua?",
    "el seguro cubre la rotura de lunas",
    "¿Qué temperatura soporta el vidrio antes de romperse?",
    "¿Quién ganó la liga femenina en 2019?",
)

THAI_TWO_STEPS = (
    "ผู้กำกับภาพยนตร์ที่ณเดชน์แสดงนำเกิดที่จังหวัดใด",
    "นักเขียนซึ่งแต่งนวนิยายที่ถูกสร้างเป็นละครเรื่องสายลับสลับใจเรียนจบจากมหาวิทยาลัยไหน",
    "เชียงรายกับน่านอยู่ติดชายแดนประเทศเดียวกันหรือไม่",
    "ระหว่างนิตยสารแพรวกับนิตยสารพลอยแกมเพชร ฉบับใดก่อตั้งก่อน",
    "นายกเทศมนตรีของเมืองที่มีสะพานยาวที่สุดในภาคใต้สังกัดพรรคใด",
    "วงดนตรีที่นักร้องนำเคยเป็นครูสอนภาษาไทยก่อตั้งขึ้นเมื่อปีใด",
    "ทั้งวัดอรุณและวัดโพธิ์สร้างในสมัยเดียวกันหรือเปล่า",
    "แม่น้ำสายใดไหลผ่านจังหวัดซึ่งเป็นบ้านเกิดของผู้แต่งเพลงลาวดวงเดือน",
    "บริษัทที่ผลิตเครื่องยนต์ให้รถไฟซึ่งวิ่งสายใต้มีสำนักงานใหญ่อยู่ที่ประเทศอะไร",
    "โค้ชของทีมที่ชนะเลิศฟุตบอลถ้วยพระราชทานปี 2560 เคยเล่นให้สโมสรใด",
    "ใครเป็นพี่ชายของนักแสดงผู้รับบทพระเอกในละครที่ออกอากาศทางช่อง 7",
    "สมชายกับสมศักดิ์ใครเกิดก่อน",
    "พิพิธภัณฑ์ที่ตั้งอยู่ในเมืองหลวงของประเทศซึ่งเป็นเจ้าภาพโอลิมปิกปี 1988 มีชื่อว่าอะไร",
    "ภรรยาของผู้ก่อตั้งธนาคารที่มีสาขามากที่สุดในภาคเหนือชื่ออะไร",
    "ดอยอินทนนท์หรือดอยผ้าห่มปก ยอดใดสูงกว่ากัน",
)

THAI_ONE_STEP = (
    "ร้านเปิดกี่โมง",
    "วัดพระแก้วสร้างขึ้นเมื่อใด",
    "น้ำเดือดที่อุณหภูมิเท่าไร",
    "ใครเป็นผู้แต่งพระอภัยมณี",
    "ช้างกินอะไรเป็นอาหาร",
    "จังหวัดที่ใหญ่ที่สุดของไทยคือจังหวัดอะไร",
    "ต้องใช้เอกสารอะไรในการต่ออายุหนังสือเดินทาง",
    "ที่จอดรถอยู่ชั้นไหน",
    "สะพานพระรามแปดยาวกี่เมตร",
    "ทำไมท้องฟ้าเป็นสีฟ้า",
    "ค่าโดยสารรถไฟฟ้าสำหรับนักเรียนเท่าไหร่",
    "นกเงือกทำรังที่ไหน",
    "ปลากัดมีอายุกี่ปี",
    "ตลาดน้ำอัมพวาเปิดวันไหนบ้าง",
    "ยาที่หมดอายุแล้วทิ้งอย่างไร",
)


@pytest.mark.parametrize(
    "query",
    [
        "Compare the tariffs of the north line with those of the south line",
        "What is the difference between a ketch and a yawl?",
        "Analyse the accident rate of the last decade",
        "Walk me through the licence application step by step",
        "Where is the office? And when does it open?",
        "Who signs the form, what does it cost, and how long does it take?",
        "What nationality is the director of the film starring Tilda Swinton?",
        "Which magazine was published first, Time or Life?",
        "Do the olive and the ash belong to the same family?",
        "Compara el precio del billete sencillo con el del abono",
        "¿Quién firma, cuánto cuesta y qué papeles hacen falta?",
        "¿Por qué sube el alquiler mientras que bajan los salarios?",
        "เปรียบเทียบราคาบ้านกับคอนโด",
        "รถไฟกับรถบัสแบบไหนเร็วกว่า",
    ],
)
def test_complex(query):
    verdict, score = assess_complexity(query)
    assert verdict is Complexity.COMPLEX
    assert score > 0.1


@pytest.mark.parametrize(
    "query",
    [
        "",
        "   ",
        "What is the capital of Peru?",
        "How many islands are there?",
        "opening hours",
        "When does the ferry leave and from which pier?",
        "¿Cuánto cuesta un billete?",
        "¿Dónde está la oficina que expide el carné?",
        "ราคาเท่าไร",
        "สถานีรถไฟอยู่ที่ไหน",
    ],
)
def test_simple(query):
    verdict, score = assess_complexity(query)
    assert verdict is Complexity.SIMPLE
    assert score < 0.3


def test_a_long_question_is_complex_and_a_long_list_is_not():
    story = "The boiler in our cellar keeps losing pressure although nobody has opened a valve since the plumber came "
    assert assess_complexity(story + "here last autumn to exchange the pump that had been rattling")[0] is (
        Complexity.COMPLEX
    )
    assert assess_complexity(", ".join(f"valve of pipe {n}" for n in range(12)))[0] is Complexity.SIMPLE


def test_three_conjunctions_are_complex():
    assert assess_complexity("bolts and nuts and screws or nails")[0] is Complexity.COMPLEX
    assert assess_complexity("bolts and nuts or nails")[0] is Complexity.SIMPLE


def test_a_complex_pattern_goes_before_a_simple_one():
    assert assess_complexity("What is the difference between them?")[0] is Complexity.COMPLEX


@pytest.mark.parametrize(
    ("questions", "verdict", "least"),
    [
        (SPANISH_TWO_STEPS, Complexity.COMPLEX, 12),
        (SPANISH_ONE_STEP, Complexity.SIMPLE, 14),
        (THAI_TWO_STEPS, Complexity.COMPLEX, 13),
        (THAI_ONE_STEP, Complexity.SIMPLE, 14),
    ],
)
def test_questions_in_several_steps_are_told_by_their_wording(questions, verdict, least):
    assert sum(assess_complexity(query)[0] is verdict for query in questions) >= least


def test_cues_of_several_steps_decide_from_the_weight_of_a_complex_pattern_on():
    weak = "who is the owner of the yacht"
    assert 0.0 < sum(cue_weights(weak)) < 0.3
    assert assess_complexity(weak)[0] is Complexity.SIMPLE
    strong = "who is the owner of the yacht painted by Ada or the sloop sailed by Charles"
    assert sum(cue_weights(strong)) >= 0.3
    assert assess_complexity(strong)[0] is Complexity.COMPLEX


def test_cues_of_several_steps_go_before_a_simple_pattern():
    query = "Are Ada Lovelace and Mary Miller both painters?"
    assert "simple_pattern" in complexity_reasons(query)
    assert assess_complexity(query)[0] is Complexity.COMPLEX


def test_a_simple_pattern_goes_before_the_count_of_conjunctions():
    assert assess_complexity("What is the rule of salt and oil and flour or bran?")[0] is Complexity.SIMPLE


def test_the_score_adds_up():
    # One conjunction and the length.
    assert assess_complexity("bolts and nuts")[1] == pytest.approx(0.05 + 0.2 * 14 / 300)
    # A medium keyword.
    assert assess_complexity("boiler trend")[1] == pytest.approx(0.08 + 0.2 * 12 / 300)
    # A strong keyword.
    assert assess_complexity("evaluate boilers")[1] == pytest.approx(0.15 + 0.2 * 16 / 300)
    # Names, that is a cue of several steps.
    assert assess_complexity("when did Ada meet Charles")[1] == pytest.approx(0.17 + 0.2 * 25 / 300)
    # A simple pattern takes off, and the score never falls below zero.
    assert assess_complexity("What is salt?")[1] == 0.0


def test_the_score_is_clipped():
    query = (
        "Compare pros and cons, analyse and evaluate and assess and contrast the trade-offs, the implications, the "
        "root cause, versus each other step by step: what is the difference between them? Why? And how do they differ?"
    )
    assert assess_complexity(query)[1] == 1.0


def test_cues_of_several_steps_add_no_more_than_a_complex_pattern():
    query = "who is the owner of the yacht painted by Ada or the sloop sailed by Charles"
    assert assess_complexity(query)[1] == pytest.approx(0.3 + 0.05 + 0.2 * len(query) / 300)


def test_reasons_name_what_was_found():
    assert complexity_reasons("") == ()
    assert complexity_reasons("Is it true?") == ("simple_pattern",)
    assert complexity_reasons("evaluate the trend and compare") == (
        "strong_keyword: evaluate",
        "strong_keyword: compare",
        "medium_keyword: trend",
        "conjunctions: 1",
    )
    assert complexity_reasons("when did Ada meet Charles") == ("several_names",)
    reasons = complexity_reasons(f"Why? When? {'salt ' * 60} compare {'pepper ' * 10} with oil")
    assert "several_questions: 2" in reasons
    assert "more_than_150_characters" in reasons
    assert any(reason.startswith("complex_pattern: compare pepper") and len(reason) <= 60 for reason in reasons)


def test_relative_clauses_are_no_questions():
    text = matching_form("¿Dónde está el coche que compré y que vendí?")
    assert question_count(text, [load_table("es")]) == 1
    assert question_count(matching_form("really??!"), [load_table("en")]) == 1
    assert question_count(matching_form("Who? When? Where?"), [load_table("en")]) == 3


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=400))
def test_any_text_has_a_complexity(query):
    verdict, score = assess_complexity(query)
    assert isinstance(verdict, Complexity)
    assert 0.0 <= score <= 1.0
    assert all(isinstance(reason, str) and reason for reason in complexity_reasons(query))


def cue_weights(query):
    return hop_cues(query, read_query(query)).values()


def cues_of(query: str) -> dict[str, float]:
    return hop_cues(query, read_query(query))


@pytest.mark.parametrize(
    ("query", "cue"),
    [
        ("Do the olive and the ash belong to the same family?", "compared"),
        ("Which is heavier, a swan or a goose?", "alternative"),
        ("Who trained the pilot, whose plane is in the hall?", "relative_clause"),
        ("Where is the mill painted by my aunt?", "participle"),
        ("Who is the owner of the yacht that won?", "described"),
        ("What does Lima, the capital of a country in the south, export?", "apposition"),
        ("The bridge over our river was opened by which mayor?", "late_question"),
        ("What is the name of the bird that sings before the sun rises here?", "long"),
        ("did Ada Lovelace meet Charles Babbage", "several_names"),
        ('who sang "River of Rain"', "quotation"),
        ("¿Pertenecen el olivo y el fresno a la misma familia?", "compared"),
        ("¿Quién nació primero, el conde o el duque?", "alternative"),
        ("¿Dónde vive el pintor cuya casa ardió?", "relative_clause"),
        ("¿Quién compró el molino pintado por mi tía?", "participle"),
        ("¿Cuál es la sede de la empresa que fabrica las velas?", "described"),
        ("El puente sobre nuestro río, ¿quién lo inauguró?", "late_question"),
        ("มะม่วงและมะปรางอยู่ในวงศ์เดียวกันไหม", "compared"),
        ("สนามบินของเมืองซึ่งเคยเป็นเมืองหลวงชื่ออะไร", "relative_clause"),
        ("ละครที่เขียนโดยหลานของเขาฉายเมื่อใด", "participle"),
        ("ใครเป็นภรรยาของผู้แต่งเพลงนี้", "described"),
    ],
)
def test_a_cue_is_found(query, cue):
    assert cues_of(query)[cue] > 0.0


@pytest.mark.parametrize("query", ["", "   ", "opening hours", "what is salt", "¿Qué es la sal?", "ร้านเปิดกี่โมง"])
def test_plain_questions_have_no_cue(query):
    assert cues_of(query) == {}


def test_names_are_counted_once_and_not_at_the_start():
    assert "several_names" not in cues_of("Gandhi and his friends in Porbandar")
    assert "several_names" not in cues_of("did Ada Lovelace know that Ada Lovelace was early")
    assert cues_of("did Ada meet Charles")["several_names"] == pytest.approx(SECOND_NAME)
    assert cues_of("did Ada meet Charles and Mary")["several_names"] == pytest.approx(SECOND_NAME + THIRD_NAME)


def test_names_of_several_words_are_one():
    assert "several_names" not in cues_of("who leads the University of the South Pacific")
    assert "several_names" not in cues_of("when was E. B. White born")
    assert "several_names" in cues_of("when did White leave. The end of Miller was near. So did Brown")


def test_codes_pronouns_and_shouting_name_nothing():
    assert "several_names" not in cues_of("what can I pay when I visit and I'm alone")
    assert "several_names" not in cues_of("does the NS-3 or the E42 fit N1")
    assert "several_names" not in cues_of("DID ADA MEET CHARLES, OR MARY")


def test_capitals_tell_nothing_in_a_language_without_table():
    german = "Welche Versicherung brauche ich für meinen Hund, wenn die Nachbarin mit ihm spazieren geht?"
    assert len(read_query(german).tables) > 1
    assert "several_names" not in cues_of(german)


def test_weights_are_those_of_the_table_for_each_pattern():
    long = next(cue for cue in load_table("en").hops if cue.name == "long")
    words = " ".join(["salt"] * 12)
    assert cues_of(words)["long"] == pytest.approx(long.weight)
    assert cues_of(f"{words} {words}")["long"] == pytest.approx(3 * long.weight)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=400))
def test_any_text_has_cues_of_positive_weight(query):
    cues = cues_of(query)
    known = {cue.name for code in table_languages() for cue in load_table(code).hops}
    assert set(cues) <= known | {"several_names", "quotation"}
    assert all(weight > 0.0 for weight in cues.values())


@pytest.mark.parametrize(
    "unit",
    [
        "the man of the director, ", "or or ", "how is and and ", "the ", "el director de la actriz que ", "nacido en ",
        "Aa Bb. ", '"a b', "a-'.&", "ที่ของซึ่ง", "นักเขียนของ", "กับใครระหว่าง", ", a ",
    ],
)  # fmt: skip
def test_repetition_takes_no_long_time(unit):
    query = (unit * 10_000)[:10_000]
    read = read_query(query)
    start = time.perf_counter()
    hop_cues(query, read)
    # A pattern of quadratic time would take seconds; the patterns take milliseconds.
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    ("hops", "named"),
    [
        ([], "complexity.hops"),
        ({"odd": []}, "complexity.hops.odd"),
        ({"odd": {"weight": 0.1}}, "patterns"),
        ({"odd": {"weight": 0.0, "patterns": []}}, "complexity.hops.odd.weight"),
        ({"odd": {"weight": True, "patterns": []}}, "complexity.hops.odd.weight"),
        ({"odd": {"weight": float("nan"), "patterns": []}}, "complexity.hops.odd.weight"),
        ({"odd": {"weight": 0.1, "patterns": ["(unclosed"]}}, "complexity.hops.odd.patterns[0]"),
    ],
)
def test_damaged_cues_are_named(hops, named):
    english = language_files()["en"]
    raw = {**english, "complexity": {**english["complexity"], "hops": hops}}
    with pytest.raises(ConfigError) as caught:
        parse_table(raw, file="languages/xx.json")
    assert named in str(caught.value)
