from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.text import detect_language

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=300)


@pytest.mark.parametrize(
    ("text", "language"),
    [
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
    ],
)  # fmt: skip
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


def test_threads_agree() -> None:
    questions = ["¿Quién paga la tasa?", "Who pays the fee?", "Wer bezahlt die Gebühr?", "ใครจ่ายค่าธรรมเนียม"] * 25
    expected = [detect_language(question) for question in questions]
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append([detect_language(question) for question in questions]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8
