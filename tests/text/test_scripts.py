from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.text import Script, dominant_script, script_of

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=200)


@pytest.mark.parametrize(
    ("char", "script"),
    [
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
    ],
)  # fmt: skip
def test_script_of(char: str, script: Script) -> None:
    assert script_of(char) is script


def test_dominant_script_counts_letters() -> None:
    assert dominant_script("BM25 สำหรับภาษาไทย") is Script.THAI
    assert dominant_script("2024-01-01 !!!") is Script.OTHER
    assert dominant_script("") is Script.OTHER
    assert dominant_script("aж") is Script.LATIN  # a tie goes to the first


@given(ANY_TEXT)
def test_dominant_script_agrees_with_script_of(text: str) -> None:
    counts = [script_of(char) for char in text if script_of(char) is not Script.OTHER]
    dominant = dominant_script(text)
    assert counts.count(dominant) == max(map(counts.count, counts), default=0)
