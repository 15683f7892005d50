import copy
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import within

from agentic_retriever import routing
from agentic_retriever.errors import ConfigError
from agentic_retriever.routing import signals
from agentic_retriever.schema import MAX_EXAMINED, Complexity, examined
from agentic_retriever.text import Tokenizer
from agentic_retriever.text.language_files import language_files


def test_every_packaged_table_is_sound():
    assert {"en", "es", "th"} <= set(signals.table_languages())
    for language in signals.table_languages():
        assert signals.load_table(language).language == language
        assert signals.load_table(language) is signals.load_table(language)


@pytest.mark.parametrize(
    ("query", "languages"),
    [
        ("¿Cuánto cuesta la homologación de un coche usado?", ["es"]),
        ("ค่าธรรมเนียมการโอนที่ดินเท่าไร", ["th"]),
        # A language without table gets all; nothing in ASCII can hold words of scripts without spaces.
        *((query, ["de", "en", "es", "th"]) for query in ("Сколько стоит перевод?", "これは何ですか", "42 €")),
        *((query, ["de", "en", "es"]) for query in ("", "42", "x-17")),
    ],
)
def test_a_query_gets_the_tables_of_its_language(query, languages):
    assert [table.language for table in signals.read_query(query).tables] == languages


def test_words_are_matched_without_accents_and_capitals_and_stars_take_endings():
    assert signals.matching_form("  ¿QUÉ\t Comparación\n según Ñu? ") == "¿que comparacion segun nu?"
    assert signals.matching_form("ทำ") == signals.matching_form("ท\u0e4d\u0e32")
    table = signals.load_table("en")
    assert table.matches("comparison", "a comparative table, versus others")
    assert table.matches("overview", "please summarised this")
    assert not table.matches("comparison", "the vsat terminal")


HOPS = ("complexity", "hops")


@pytest.mark.parametrize(("path", "value", "named"), [
    (("complexity", "complex_patterns"), ["ok", "(unclosed"], "complexity.complex_patterns[1]"),
    (("signals", "range", "patterns"), ["[z-a]"], "signals.range.patterns[0]"),
    (("signals", "overview", "words"), "summary", "signals.overview.words"),
    (("signals", "overview", "words"), [""], "signals.overview.words"),
    (("signals", "overview"), {"words": []}, "patterns"),
    (("signals", "surprise"), {"words": [], "patterns": []}, "surprise"),
    (("complexity", "strong_keywords"), [3], "complexity.strong_keywords"), (("complexity",), [], "complexity"),
    (("signals", "detail"), ..., "missing or unknown: detail"), (HOPS, [], "complexity.hops"),
    (HOPS, {"odd": []}, "complexity.hops.odd"), (HOPS, {"odd": {"weight": 0.1}}, "patterns"),
    *((HOPS, {"odd": {"weight": w, "patterns": []}}, "complexity.hops.odd.weight") for w in (0.0, True, math.nan)),
    (HOPS, {"odd": {"weight": 0.1, "patterns": ["(unclosed"]}}, "complexity.hops.odd.patterns[0]"),
])  # fmt: skip
def test_a_damaged_table_names_file_and_key(path, value, named):
    place = raw = copy.deepcopy(language_files()["en"])
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    if value is ...:
        del place[path[-1]]
    with pytest.raises(ConfigError) as caught:
        signals.parse_table(raw, file="languages/xx.json")
    assert "languages/xx.json" in str(caught.value)
    assert named in str(caught.value)


AGENCY_NAME = "agencia de homologación y ensayos"
AGENCY = {"authority": [AGENCY_NAME]}
COMPARE = "Lequel vaut mieux pour les employés, le congé annuel ou le congé sabbatique ?"


@pytest.fixture
def french():
    ranges = {"patterns": [r"entre (?P<low>\d+) et (?P<high>\d+)"]}
    signals = {"comparison": ["différence*", "compar*"], "range": ranges}
    routing.register_language(
        "fr", signals=signals, complexity={"strong_keywords": ["différence*"], "conjunctions": ["et"]}
    )
    yield
    routing.unregister_language("fr")


def test_questions_of_the_language_are_read_by_its_table():
    before = [table.language for table in signals.read_query(COMPARE).tables]
    assert routing.query_features(COMPARE, None, 0.0)["comparison"] == 0.0
    assert routing.assess_complexity(COMPARE)[0] is Complexity.SIMPLE
    routing.register_language("fr", signals={"comparison": ["LÉQUEL"]}, complexity={"strong_keywords": ["vaut mieux"]})
    try:
        assert [table.language for table in signals.read_query(COMPARE).tables] == ["fr"]
        assert routing.query_features(COMPARE, None, 0.0)["comparison"] == 1.0
        assert routing.assess_complexity(COMPARE)[0] is Complexity.COMPLEX
    finally:
        routing.unregister_language("fr")
    assert [table.language for table in signals.read_query(COMPARE).tables] == before
    assert routing.assess_complexity(COMPARE)[0] is Complexity.SIMPLE


def test_a_registered_language_is_read_by_its_table_beside_the_others(french):
    table = signals.load_table("fr")
    assert table.matches("comparison", "les differences")
    assert table.matches("range", "entre 5 et 10 jours")
    assert not table.matches("overview", "resume")
    assert routing.query_features("Les congés entre 5 et 10 jours du personnel", None, 0.0)["range"] == 1.0
    assert [table.language for table in signals.read_query("What is the difference between the two?").tables] == ["en"]
    assert signals.table_languages() == ("de", "en", "es", "fr", "th")
    routing.register_language("fr", signals={"overview": ["résumé"]})
    assert not signals.load_table("fr").matches("comparison", "differences")
    assert signals.load_table("fr").matches("overview", "un resume")


@pytest.mark.parametrize(("code", "table", "said"), [
    ("en", {"signals": {}}, "package has a table"), ("French", {"signals": {}}, "code"),
    ("fr", {"signals": {"comparisons": []}}, "did you mean 'comparison'"),
    ("fr", {"signals": {"comparison": "compare"}}, "must be a list"),
    ("fr", {"signals": {"comparison": {"word": []}}}, "missing or unknown: word"),
    ("fr", {"signals": {"comparison": {"patterns": ["("]}}}, "no regular expression"),
    ("fr", {"signals": {"comparison": [""]}}, "none empty"),
    ("fr", {"signals": {"comparison": [object()]}}, "must be a list of strings"),
    ("fr", {"signals": {}, "complexity": {"strong": []}}, "unknown list of complexity"),
])  # fmt: skip
def test_what_cannot_be_registered_or_taken_away_is_named(code, table, said):
    with pytest.raises(ConfigError, match=said):
        routing.register_language(code, **table)
    assert "fr" not in signals.table_languages()
    with pytest.raises(ConfigError, match="no table was added"):
        routing.unregister_language("en")


@pytest.mark.parametrize(("language", "values", "query", "found"), [
    pytest.param(
        "en", {"kind": ["policy", "report"], "department": ["finance", "people"]},
        "Which policies did the finance department write?", [("kind", "policy"), ("department", "finance")],
        id="whatever their endings",
    ),
    pytest.param("en", {"kind": ["report"]}, "report, reports and a report", [("kind", "report")], id="once each"),
    pytest.param(
        "en", {"year": ["2024"], "version": ["1.0", "7"], "annex": ["v", "iv"]},
        "annex IV of 2024, version 1.0, 7 V", [("annex", "iv"), ("year", "2024")],
        id="a year as text is a value and other numbers are not",
    ),
    pytest.param(
        "es", AGENCY, "según la Agencia de Homologacion y Ensayos", [("authority", AGENCY_NAME)], id="all",
    ),
    pytest.param("es", AGENCY, "los ensayos de homologación de la agencia", [], id="in another order"),
    pytest.param("es", AGENCY, "la agencia", [], id="not all of its words"),
    pytest.param(
        "th", {"province": ["เชียงใหม่", "เชียงราย"]}, "ที่ดินในเชียงใหม่มีกี่แปลง", [("province", "เชียงใหม่")],
        id="inside text without spaces",
    ),
])  # fmt: skip
def test_values_that_a_query_names(language, values, query, found):
    table = signals.value_table({name: frozenset(listed) for name, listed in values.items()}, language)
    assert table.found(Tokenizer(language=language).query_tokens(query)) == [signals.ValueHit(*hit) for hit in found]


def test_both_ends_of_a_long_query_are_examined():
    assert examined("short") == "short"
    seen = examined("start " + "x" * 30_000 + " end")
    assert (len(seen), seen[:5], seen[-3:]) == (MAX_EXAMINED + 1, "start", "end")


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
    "¿Cuándo se inauguró el tranvía de Zaragoza?", "¿Qué altura tiene la torre del reloj?",
    "¿Cuántas personas caben en el teatro?", "¿Quién escribió la primera gramática del euskera?",
    "¿Qué come el lince ibérico?", "¿Por qué calle pasa la cabalgata?", "¿Qué se necesita para renovar el pasaporte?",
    "¿Dónde se guardan las llaves del almacén de pinturas?", "¿Cuánto tarda en hervir un litro de agua?",
    "¿Qué documentos pide el banco para abrir una cuenta?", "¿Qué edad tenía la reina Isabel cuando subió al trono?",
    "¿Cómo se llama el lago más profundo de Nicaragua?", "el seguro cubre la rotura de lunas",
    "¿Qué temperatura soporta el vidrio antes de romperse?", "¿Quién ganó la liga femenina en 2019?",
)  # fmt: skip

THAI_TWO_STEPS = (
    "ผู้กำกับภาพยนตร์ที่ณเดชน์แสดงนำเกิดที่จังหวัดใด",
    "นักเขียนซึ่งแต่งนวนิยายที่ถูกสร้างเป็นละครเรื่องสายลับสลับใจเรียนจบจากมหาวิทยาลัยไหน",
    "เชียงรายกับน่านอยู่ติดชายแดนประเทศเดียวกันหรือไม่", "ระหว่างนิตยสารแพรวกับนิตยสารพลอยแกมเพชร ฉบับใดก่อตั้งก่อน",
    "นายกเทศมนตรีของเมืองที่มีสะพานยาวที่สุดในภาคใต้สังกัดพรรคใด", "วงดนตรีที่นักร้องนำเคยเป็นครูสอนภาษาไทยก่อตั้งขึ้นเมื่อปีใด",
    "ทั้งวัดอรุณและวัดโพธิ์สร้างในสมัยเดียวกันหรือเปล่า", "แม่น้ำสายใดไหลผ่านจังหวัดซึ่งเป็นบ้านเกิดของผู้แต่งเพลงลาวดวงเดือน",
    "บริษัทที่ผลิตเครื่องยนต์ให้รถไฟซึ่งวิ่งสายใต้มีสำนักงานใหญ่อยู่ที่ประเทศอะไร",
    "โค้ชของทีมที่ชนะเลิศฟุตบอลถ้วยพระราชทานปี 2560 เคยเล่นให้สโมสรใด",
    "ใครเป็นพี่ชายของนักแสดงผู้รับบทพระเอกในละครที่ออกอากาศทางช่อง 7", "สมชายกับสมศักดิ์ใครเกิดก่อน",
    "พิพิธภัณฑ์ที่ตั้งอยู่ในเมืองหลวงของประเทศซึ่งเป็นเจ้าภาพโอลิมปิกปี 1988 มีชื่อว่าอะไร",
    "ภรรยาของผู้ก่อตั้งธนาคารที่มีสาขามากที่สุดในภาคเหนือชื่ออะไร", "ดอยอินทนนท์หรือดอยผ้าห่มปก ยอดใดสูงกว่ากัน",
)  # fmt: skip

THAI_ONE_STEP = (
    "ร้านเปิดกี่โมง", "วัดพระแก้วสร้างขึ้นเมื่อใด", "น้ำเดือดที่อุณหภูมิเท่าไร", "ใครเป็นผู้แต่งพระอภัยมณี", "ช้างกินอะไรเป็นอาหาร",
    "จังหวัดที่ใหญ่ที่สุดของไทยคือจังหวัดอะไร", "ต้องใช้เอกสารอะไรในการต่ออายุหนังสือเดินทาง", "ที่จอดรถอยู่ชั้นไหน",
    "สะพานพระรามแปดยาวกี่เมตร", "ทำไมท้องฟ้าเป็นสีฟ้า", "ค่าโดยสารรถไฟฟ้าสำหรับนักเรียนเท่าไหร่", "นกเงือกทำรังที่ไหน",
    "ปลากัดมีอายุกี่ปี", "ตลาดน้ำอัมพวาเปิดวันไหนบ้าง", "ยาที่หมดอายุแล้วทิ้งอย่างไร",
)  # fmt: skip


COMPLEX = [
    "Compare the tariffs of the north line with those of the south line",
    "What is the difference between a ketch and a yawl?", "Analyse the accident rate of the last decade",
    "Walk me through the licence application step by step", "Where is the office? And when does it open?",
    "Who signs the form, what does it cost, and how long does it take?",
    "What nationality is the director of the film starring Tilda Swinton?",
    "Which magazine was published first, Time or Life?", "Do the olive and the ash belong to the same family?",
    "Compara el precio del billete sencillo con el del abono",
    "¿Quién firma, cuánto cuesta y qué papeles hacen falta?",
    "¿Por qué sube el alquiler mientras que bajan los salarios?", "เปรียบเทียบราคาบ้านกับคอนโด",
    "รถไฟกับรถบัสแบบไหนเร็วกว่า",
]  # fmt: skip
SIMPLE = [
    "", "   ", "What is the capital of Peru?", "How many islands are there?", "opening hours",
    "When does the ferry leave and from which pier?", "¿Cuánto cuesta un billete?",
    "¿Dónde está la oficina que expide el carné?", "ราคาเท่าไร", "สถานีรถไฟอยู่ที่ไหน",
]  # fmt: skip
STORY = (
    "The boiler in our cellar keeps losing pressure although nobody has opened a valve since the plumber came here "
    "last autumn to exchange the pump that had been rattling"
)
IN_STEPS = "who is the owner of the yacht painted by Ada or the sloop sailed by Charles"


COMPLEX_KINDS = [  # whether, should, what if, in case, sum up two, integrate, interpret, consequences, why, explain
    "¿Es recomendable cambiar la caldera?", "¿Debería avisar al casero?", "¿Qué pasaría si se rompe la bomba?",
    "En caso de que falte un recibo", "Resume la parte del agua y la de la luz", "Integra los dos avisos",
    "Interpreta la cláusula de salida", "Consecuencias de pagar tarde", "¿Por qué cierran en enero?",
    "Explica el porqué del recargo",
    "Is it advisable to bleed the radiator?", "Should I tell the landlord?", "What would happen if the pump broke?",
    "In the event that a receipt is lost", "Summarise the part on water and the one on light", "Integrate both notes",
    "Interpret the exit clause", "Consequences of paying late", "Why do they close?", "Explain why it costs more",
    "ควรเปลี่ยนหม้อน้ำหรือไม่", "ควรบอกเจ้าของบ้านไหม", "จะเกิดอะไรขึ้นถ้าปั๊มเสีย", "ในกรณีที่ใบเสร็จหาย",
    "สรุปเรื่องน้ำและเรื่องไฟ", "บูรณาการประกาศสองฉบับ", "ตีความเงื่อนไขการออก", "ผลที่ตามมาของการจ่ายช้า", "ทำไมปิดเดือนมกราคม",
    "อธิบายสาเหตุที่แพงขึ้น",
    "Ist es ratsam, die Heizung zu entlüften?", "Sollte ich den Vermieter fragen?",
    "Was würde passieren, wenn die Pumpe ausfällt?", "Warum ist im Januar zu?", "Folgen der späten Zahlung",
]  # fmt: skip
SIMPLE_KINDS = [
    "Lista de recibos", "Enumera los avisos", "Requisitos para el carné", "¿Qué necesito para salir?", "Artículo 5",
    "Punto 3", "list of receipts", "Requirements for a permit", "What do I need to leave?", "Article 5", "Point 3",
    "รายการใบเสร็จ", "คุณสมบัติสำหรับผู้เช่า", "ต้องใช้อะไรบ้าง", "มาตรา 5", "ข้อ ๓", "Liste der Belege",
    "Voraussetzungen für den Ausweis", "Was brauche ich zum Auszug?", "Artikel 5",
]  # fmt: skip


@pytest.mark.parametrize("query", COMPLEX_KINDS)
def test_kinds_of_complex_questions(query):
    verdict, score = routing.assess_complexity(query)
    assert verdict is Complexity.COMPLEX
    assert score > 0.2


@pytest.mark.parametrize("query", SIMPLE_KINDS)
def test_kinds_of_simple_questions_and_several_patterns_of_them_take_off(query):
    assert routing.assess_complexity(query)[0] is Complexity.SIMPLE
    assert "simple_pattern" in routing.complexity_reasons(query)


@pytest.mark.parametrize("query", COMPLEX + SIMPLE)
def test_complex_and_simple(query):
    verdict, score = routing.assess_complexity(query)
    assert verdict is (Complexity.COMPLEX if query in COMPLEX else Complexity.SIMPLE)
    assert score > 0.1 if query in COMPLEX else score < 0.3


@pytest.mark.parametrize(
    ("query", "is_complex"),
    [
        pytest.param(STORY, True, id="a long question"),
        pytest.param(", ".join(f"valve of pipe {n}" for n in range(12)), False, id="a long list"),
        pytest.param("bolts and nuts and screws or nails", True, id="three conjunctions"),
        pytest.param("bolts and nuts or nails", False, id="two conjunctions"),
        pytest.param("What is the difference between them?", True, id="a complex pattern before a simple one"),
        pytest.param("What is the rule of salt and oil and flour or bran?", False, id="simple before conjunctions"),
        pytest.param("Are Ada Lovelace and Mary Miller both painters?", True, id="several steps before simple"),
        pytest.param("who is the owner of the yacht", False, id="weak cues of several steps"),
        pytest.param(IN_STEPS, True, id="cues of several steps as heavy as a complex pattern"),
    ],
)
def test_the_first_check_that_applies_decides(query, is_complex):
    assert (routing.assess_complexity(query)[0] is Complexity.COMPLEX) is is_complex


@pytest.mark.parametrize(("questions", "verdict", "least"), [
    (SPANISH_TWO_STEPS, Complexity.COMPLEX, 12), (SPANISH_ONE_STEP, Complexity.SIMPLE, 14),
    (THAI_TWO_STEPS, Complexity.COMPLEX, 13), (THAI_ONE_STEP, Complexity.SIMPLE, 14),
])  # fmt: skip
def test_questions_in_several_steps_are_told_by_their_wording(questions, verdict, least):
    assert sum(routing.assess_complexity(query)[0] is verdict for query in questions) >= least


HEAVY = (
    "Compare pros and cons, analyse and evaluate and assess and contrast the trade-offs, the implications, the root "
    "cause, versus each other step by step: what is the difference between them? Why? And how do they differ?"
)


@pytest.mark.parametrize(
    ("query", "score"),
    [
        pytest.param("bolts and nuts", 0.05 + 0.2 * 14 / 300, id="one conjunction and the length"),
        pytest.param("boiler trend", 0.08 + 0.2 * 12 / 300, id="a medium keyword"),
        pytest.param("evaluate boilers", 0.15 + 0.2 * 16 / 300, id="a strong keyword"),
        pytest.param("when did Ada meet Charles", 0.17 + 0.2 * 25 / 300, id="names, that is a cue of several steps"),
        pytest.param("What is salt?", 0.0, id="a simple pattern takes off, and never below zero"),
        pytest.param("evaluate the list of articles of article 5", 0.15 + 0.2 * 42 / 300 - 0.1, id="inside a question"),
        pytest.param(
            "analizar y evaluar requisitos para el punto 3", 0.35 + 0.2 * 45 / 300 - 0.2, id="two simple patterns"
        ),
        pytest.param(HEAVY, 1.0, id="clipped"),
        pytest.param(IN_STEPS, 0.3 + 0.05 + 0.2 * len(IN_STEPS) / 300, id="cues add no more than a complex pattern"),
    ],
)
def test_the_score_adds_up(query, score):
    assert routing.assess_complexity(query)[1] == pytest.approx(score)


def test_reasons_and_cues_name_what_was_found():
    assert routing.complexity_reasons("") == ()
    assert routing.complexity_reasons("Is it true?") == ("simple_pattern",)
    told = ("strong_keyword: evaluate", "strong_keyword: compare", "medium_keyword: trend", "conjunctions: 1")
    assert routing.complexity_reasons("evaluate the trend and compare") == told
    assert routing.complexity_reasons("when did Ada meet Charles") == ("several_names",)
    reasons = routing.complexity_reasons(f"Why? When? {'salt ' * 60} compare {'pepper ' * 10} with oil")
    assert "several_questions: 2" in reasons
    assert "more_than_150_characters" in reasons
    assert any(reason.startswith("complex_pattern: compare pepper") and len(reason) <= 60 for reason in reasons)
    few, many = cues_of("who is the owner of the yacht"), cues_of(IN_STEPS)
    assert 0.0 < sum(few.values()) < 0.3 <= sum(many.values())
    assert "simple_pattern" in routing.complexity_reasons("Are Ada Lovelace and Mary Miller both painters?")


def test_relative_clauses_are_no_questions():
    text = signals.matching_form("¿Dónde está el coche que compré y que vendí?")
    assert signals.question_count(text, [signals.load_table("es")]) == 1
    assert signals.question_count(signals.matching_form("really??!"), [signals.load_table("en")]) == 1
    assert signals.question_count(signals.matching_form("Who? When? Where?"), [signals.load_table("en")]) == 3


def cues_of(query: str) -> dict[str, float]:
    return signals.hop_cues(query, signals.read_query(query))


@pytest.mark.parametrize(("query", "cue"), [
    ("Do the olive and the ash belong to the same family?", "compared"),
    ("Which is heavier, a swan or a goose?", "alternative"),
    ("Who trained the pilot, whose plane is in the hall?", "relative_clause"),
    ("Where is the mill painted by my aunt?", "participle"),
    ("Who is the owner of the yacht that won?", "described"),
    ("What does Lima, the capital of a country in the south, export?", "apposition"),
    ("The bridge over our river was opened by which mayor?", "late_question"),
    ("What is the name of the bird that sings before the sun rises here?", "long"),
    ("did Ada Lovelace meet Charles Babbage", "several_names"), ('who sang "River of Rain"', "quotation"),
    ("¿Pertenecen el olivo y el fresno a la misma familia?", "compared"),
    ("¿Quién nació primero, el conde o el duque?", "alternative"),
    ("¿Dónde vive el pintor cuya casa ardió?", "relative_clause"),
    ("¿Quién compró el molino pintado por mi tía?", "participle"),
    ("¿Cuál es la sede de la empresa que fabrica las velas?", "described"),
    ("El puente sobre nuestro río, ¿quién lo inauguró?", "late_question"),
    ("มะม่วงและมะปรางอยู่ในวงศ์เดียวกันไหม", "compared"),
    ("สนามบินของเมืองซึ่งเคยเป็นเมืองหลวงชื่ออะไร", "relative_clause"),
    ("ละครที่เขียนโดยหลานของเขาฉายเมื่อใด", "participle"), ("ใครเป็นภรรยาของผู้แต่งเพลงนี้", "described"),
])  # fmt: skip
def test_a_cue_is_found(query, cue):
    assert cues_of(query)[cue] > 0.0


@pytest.mark.parametrize("query", ["", "   ", "opening hours", "what is salt", "¿Qué es la sal?", "ร้านเปิดกี่โมง"])
def test_plain_questions_have_no_cue(query):
    assert cues_of(query) == {}


@pytest.mark.parametrize(
    ("query", "weight"),
    [
        pytest.param("did Ada meet Charles", signals.SECOND_NAME, id="two"),
        pytest.param("did Ada meet Charles and Mary", signals.SECOND_NAME + signals.THIRD_NAME, id="three"),
        pytest.param(
            "when did White leave. The end of Miller was near. So did Brown",
            signals.SECOND_NAME + signals.THIRD_NAME,
            id="end",
        ),
        pytest.param("Gandhi and his friends in Porbandar", None, id="not at the start"),
        pytest.param("did Ada Lovelace know that Ada Lovelace was early", None, id="once"),
        pytest.param("who leads the University of the South Pacific", None, id="of several words"),
        pytest.param("when was E. B. White born", None, id="with initials"),
        pytest.param("what can I pay when I visit and I'm alone", None, id="pronouns"),
        pytest.param("does the NS-3 or the E42 fit N1", None, id="codes"),
        pytest.param("DID ADA MEET CHARLES, OR MARY", None, id="shouting"),
    ],
)
def test_names_are_counted(query, weight):
    assert cues_of(query).get("several_names") == (None if weight is None else pytest.approx(weight))


def test_cue_weights_are_those_of_the_table_and_capitals_tell_nothing_without_one():
    long = next(cue for cue in signals.load_table("en").hops if cue.name == "long")
    words = " ".join(["salt"] * 12)
    assert cues_of(words)["long"] == pytest.approx(long.weight)
    assert cues_of(f"{words} {words}")["long"] == pytest.approx(3 * long.weight)
    german = "Welche Versicherung brauche ich für meinen Hund, wenn die Nachbarin mit ihm spazieren geht?"
    italian = "Che assicurazione serve per il mio Cane, se va a spasso con la Vicina di Casa?"
    assert len(signals.read_query(italian).tables) > 1
    assert not {"several_names"} & {*cues_of(german), *cues_of(italian)}


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=400))
def test_any_text_has_a_complexity_and_cues_of_positive_weight(query):
    verdict, score = routing.assess_complexity(query)
    assert isinstance(verdict, Complexity)
    assert 0.0 <= score <= 1.0
    assert all(isinstance(reason, str) and reason for reason in routing.complexity_reasons(query))
    cues = cues_of(query)
    known = {cue.name for code in signals.table_languages() for cue in signals.load_table(code).hops}
    assert set(cues) <= known | {"several_names", "quotation"}
    assert all(weight > 0.0 for weight in cues.values())


@pytest.mark.parametrize("unit", [
    "the man of the director, ", "or or ", "how is and and ", "the ", "el director de la actriz que ", "nacido en ",
    "Aa Bb. ", '"a b', "a-'.&", "ที่ของซึ่ง", "นักเขียนของ", "กับใครระหว่าง", ", a ",
])  # fmt: skip
def test_repetition_takes_no_long_time(unit):
    query = (unit * 10_000)[:10_000]
    read = signals.read_query(query)
    with within(1.0):  # the patterns take milliseconds, one of quadratic time would take seconds
        signals.hop_cues(query, read)


_QUESTIONS = Path(__file__).with_name("strategy_questions.jsonl").read_text("utf-8").splitlines()
_ASKED = [json.loads(line)["question"] for line in _QUESTIONS]
_ANY_TEXT = st.text(st.sampled_from("aeio ıſKßẞ.,?é") | st.characters(exclude_categories=()), max_size=80)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(_ASKED) | _ANY_TEXT, min_size=1, max_size=3).map(" ".join))
def test_what_one_pass_leaves_out_occurs_nowhere(query):
    for language in signals.table_languages():
        table, text = signals.load_table(language), signals.matching_form(query)
        for form in (text, query, query.upper()):
            likely = table.cues.likely(form)
            for name, pattern in table.cues.listed:
                assert pattern in likely.get(name, ()) or pattern.search(form) is None
