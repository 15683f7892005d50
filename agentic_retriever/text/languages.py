"""The language of a text: by its script where that is enough, by a classifier where it is not.

The classifier is langid's naive Bayes over byte n-grams (M. Lui and T. Baldwin, "langid.py: An Off-the-shelf Language
Identification Tool", ACL 2012). Its ranking is weighed with how common a language is and with the stop words seen,
because questions are short and full of names.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agentic_retriever.text.scripts import Script, script_counts
from agentic_retriever.text.tokens import stopword_languages, stopwords

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

UNDETERMINED: Final = "und"
"""Code of a text whose language cannot be told."""

_MAX_EXAMINED: Final = 2_000
_MIN_LETTERS: Final = 3
# A share of letters, each weighed by how much it says: a Chinese sign is about half a word. A foreign word or two in an
# English question stays below, English terms in a Thai question do not lift English above.
_MIN_SHARE: Final = 0.25
_WEIGHTS: Final = {Script.HAN: 3.0, Script.KANA: 2.0, Script.HANGUL: 2.0}

_BY_SCRIPT: Final = {
    Script.GREEK: "el", Script.ARMENIAN: "hy", Script.HEBREW: "he", Script.GURMUKHI: "pa", Script.GUJARATI: "gu",
    Script.ORIYA: "or", Script.TAMIL: "ta", Script.TELUGU: "te", Script.KANNADA: "kn", Script.MALAYALAM: "ml",
    Script.SINHALA: "si", Script.THAI: "th", Script.LAO: "lo", Script.TIBETAN: "bo", Script.MYANMAR: "my",
    Script.GEORGIAN: "ka", Script.HANGUL: "ko", Script.ETHIOPIC: "am", Script.KHMER: "km", Script.KANA: "ja",
    Script.HAN: "zh",
}  # fmt: skip


def _weighted(languages: str, weight: float) -> dict[str, float]:
    return dict.fromkeys(languages.split(), weight)


# The languages to choose from, with how much more readily each is believed than the least common.
_CANDIDATES: Final[dict[Script, dict[str, float]]] = {
    Script.LATIN: _weighted(
        "af az bs ca cs cy da et eu fi ga gl hr ht hu is jv lt lv ms mt no ro sk sl so sq sv sw tl uz zu", 1.0
    )
    | _weighted("id pl tr vi", 2.0)
    | _weighted("de fr it nl pt", 4.0)
    | {"en": 8.0, "es": 7.0},
    Script.CYRILLIC: _weighted("be bg kk ky mk mn sr tg tt uk", 1.0) | {"ru": 2.0},
    Script.ARABIC: _weighted("ku ps ug", 1.0) | {"ar": 3.0, "fa": 2.0, "ur": 1.5},
    Script.DEVANAGARI: _weighted("mr ne sa", 1.0) | {"hi": 3.0},
    Script.BENGALI: {"bn": 2.0, "as": 1.0},
}
# One stop word may be a name in another language; the second and third make it sure.
_STOPWORD_WEIGHT: Final = 1.5

_WORD_RE: Final = re.compile(r"[^\W\d_]+")


@lru_cache(1)
def _classifier() -> LanguageIdentifier:
    # Imported here because its model takes half a second to load, which a program that asks for no language of a
    # Latin text shall not pay. An own instance: the module's functions share one that anybody may restrict.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415

    identifier: LanguageIdentifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return identifier


def detect_language(text: str) -> str:
    """Tell the language of a text."""
    return _detected(text.lstrip()[:_MAX_EXAMINED])


@lru_cache(64)
def _detected(sample: str) -> str:
    # Several steps of one query ask for the language of the same text.
    script, letters = _leading_script(sample)
    known = _BY_SCRIPT.get(script)
    if known is not None:
        return known
    candidates = _CANDIDATES.get(script)
    if candidates is None or letters < _MIN_LETTERS:
        return UNDETERMINED
    return _classify(sample, candidates)


def _leading_script(sample: str) -> tuple[Script, int]:
    """The script that decides, and its number of letters."""
    counts = script_counts(sample)
    if not counts:
        return Script.OTHER, 0
    weights = {script: count * _WEIGHTS.get(script, 1.0) for script, count in counts.items()}
    total = sum(weights.values())
    # Japanese is written in both; its kana decide, be they ever so few.
    if Script.KANA in weights and Script.HAN in weights:
        weights[Script.KANA] += weights.pop(Script.HAN)
    others = {script: weight for script, weight in weights.items() if script is not Script.LATIN}
    best = max(others, key=lambda script: others[script], default=Script.LATIN)
    if best is not Script.LATIN and others[best] < _MIN_SHARE * total and Script.LATIN in weights:
        best = Script.LATIN
    return best, counts[best]


def _classify(sample: str, candidates: dict[str, float]) -> str:
    words = {word.casefold() for word in _WORD_RE.findall(sample)}
    belief: dict[str, float] = {
        language: probability * candidates[language]
        for language, probability in _classifier().rank(sample)
        if language in candidates
    }
    for language in stopword_languages() & belief.keys():
        belief[language] *= _STOPWORD_WEIGHT ** min(len(words & stopwords(language)), 6)
    return max(belief, key=lambda language: belief[language])
