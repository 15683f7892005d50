"""The writing system and the language of a text, and its clean forms."""

from __future__ import annotations

import io
import logging
import lzma
import re
import unicodedata
from array import array
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agentic_retriever.text.language_files import packaged_json, section, stopwords

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

logger = logging.getLogger(__name__)


class Script(str, Enum):
    """A writing system that needs rules of its own; the value is its lower-case name."""

    LATIN = "latin"
    GREEK = "greek"
    CYRILLIC = "cyrillic"
    ARMENIAN = "armenian"
    HEBREW = "hebrew"
    ARABIC = "arabic"
    DEVANAGARI = "devanagari"
    BENGALI = "bengali"
    GURMUKHI = "gurmukhi"
    GUJARATI = "gujarati"
    ORIYA = "oriya"
    TAMIL = "tamil"
    TELUGU = "telugu"
    KANNADA = "kannada"
    MALAYALAM = "malayalam"
    SINHALA = "sinhala"
    THAI = "thai"
    LAO = "lao"
    TIBETAN = "tibetan"
    MYANMAR = "myanmar"
    GEORGIAN = "georgian"
    HANGUL = "hangul"
    ETHIOPIC = "ethiopic"
    KHMER = "khmer"
    KANA = "kana"
    HAN = "han"
    OTHER = "other"  # all other scripts; digits, punctuation, spaces, symbols, and marks that go with any script


# ``blocks``: ranges of a script's letters and own marks; ``common``: how much more readily a language is believed.
_DATA: Final = packaged_json("text/scripts.json")
_RANGES: Final = sorted(
    (int(block.split("-")[0], 16), int(block.split("-")[-1], 16), Script(name))
    for name, blocks in _DATA["blocks"].items()
    for block in blocks.split()
)
_FIRSTS: Final = [first for first, _, _ in _RANGES]
_MAX_COUNTED: Final = 20_000


def character_class(*scripts: Script) -> str:
    r"""Write the characters of some scripts as the inside of a regular expression's ``[...]``."""
    wanted = set(scripts)
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last, script in _RANGES if script in wanted)


UNSPACED_CHARS: Final = character_class(
    Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR, Script.HAN, Script.KANA, Script.HANGUL
)
# A letter of the scripts that are written without spaces between words.
UNSPACED: Final = re.compile(f"[{UNSPACED_CHARS}]")
# Vowels of Thai and Lao that are written before the consonant they belong to: no word ends with one.
LEADING_VOWELS: Final = frozenset("เแโใไເແໂໃໄ")


@lru_cache(1)  # compiled when first needed
def _letters_re() -> re.Pattern[str]:
    named = [script for script in Script if script is not Script.OTHER]
    return re.compile("|".join(f"(?P<{script.value}>[{character_class(script)}]+)" for script in named))


def script_of(char: str) -> Script:
    code = ord(char)
    at = bisect_right(_FIRSTS, code) - 1
    return _RANGES[at][2] if at >= 0 and code <= _RANGES[at][1] else Script.OTHER


def script_counts(text: str) -> dict[Script, int]:
    """Count the letters of each script in the first 20,000 characters."""
    counts: Counter[str] = Counter()
    for run in _letters_re().finditer(text, 0, _MAX_COUNTED):
        counts[run.lastgroup or ""] += run.end() - run.start()
    return {Script(name): count for name, count in counts.items()}


def dominant_script(text: str) -> Script:
    """Tell the script of most letters among the first 20,000 characters."""
    counts = script_counts(text)
    return max(counts, key=lambda script: counts[script]) if counts else Script.OTHER


# The language of a text: by its script where that is enough, by a classifier where it is not.
# The classifier is langid's naive Bayes over byte n-grams (M. Lui and T. Baldwin, "langid.py: An Off-the-shelf Language
# Identification Tool", ACL 2012). Its ranking is weighed with how common a language is and with the stop words seen,
# because questions are short and full of names.

UNDETERMINED: Final = "und"  # code of a text whose language cannot be told
_MAX_EXAMINED: Final = 2_000
_MIN_LETTERS: Final = 3
# A share of letters, each weighed by how much it says: a Chinese sign is about half a word. A foreign word or two in an
# English question stays below, English terms in a Thai question do not lift English above.
_MIN_SHARE: Final = 0.25
_WEIGHTS: Final = {Script.HAN: 3.0, Script.KANA: 2.0, Script.HANGUL: 2.0}

_BY_SCRIPT: Final[dict[Script, str]] = {Script(name): code for name, code in _DATA["language_of"].items()}
_CANDIDATES: Final[dict[Script, frozenset[str]]] = {
    Script(name): frozenset(codes.split()) for name, codes in _DATA["languages"].items()
}
_COMMON: Final[dict[str, float]] = _DATA["common"]
MARK_BLOCKS: Final[list[list[str]]] = _DATA["mark_blocks"]  # where Unicode keeps its combining marks, and more
STEMMERS: Final[dict[str, str]] = _DATA["stemmers"]
ENDINGS: Final[dict[str, list[list[str]]]] = _DATA["endings"]  # patterns of endings without the accent, and with it
ONE_FORM: Final = str.maketrans(_DATA["one_form"])  # letters that are also written otherwise
# One stop word may be a name in another language; the second and third make it sure.
_STOPWORD_WEIGHT: Final = 1.5
_WORD_RE: Final = re.compile(r"[^\W\d_]+")


@lru_cache(1)
def _classifier() -> LanguageIdentifier | None:
    """Load the classifier; its library unpacks the model, 40 MB, in the folder for temporary files."""
    # Imported here because its model takes half a second to load, which a program that asks for no language of a
    # Latin text shall not pay. An own instance: the module's functions share one that anybody may restrict.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415

    with suppress(OSError):
        return _restricted(LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True))
    logger.warning("the folder for temporary files is full; what tells languages is unpacked in memory; set TMPDIR")
    try:
        return _restricted(_unpacked_in_memory())
    except (ImportError, OSError, EOFError, ValueError, KeyError, TypeError):  # another version
        logger.warning("what tells languages cannot be unpacked in memory either; common words alone tell them")
        return None


def _restricted(classifier: LanguageIdentifier) -> LanguageIdentifier:
    """Leave out the languages that no text is ever said to have."""
    classifier.set_languages(frozenset().union(*_CANDIDATES.values()).intersection(classifier.labels))
    return classifier


def _unpacked_in_memory() -> LanguageIdentifier:
    import numpy as np  # noqa: PLC0415 - as above
    from py3langid.langid import MODEL_DIR, MODEL_FILE, LanguageIdentifier  # noqa: PLC0415 - as above

    with lzma.open(MODEL_DIR / MODEL_FILE) as packed, np.load(io.BytesIO(packed.read()), allow_pickle=False) as data:
        moves, rows = (array(data[name].dtype.char, data[name].tobytes()) for name in ("nextmove", "nextmove_row"))
        parts = data["ptc"], data["pc"], data["classes"].tolist(), moves, data["out_feat"].tolist()
    return LanguageIdentifier(*parts, norm_probs=True, tk_row=rows)


def detect_language(text: str) -> str:
    """Tell the language of a text by its ISO 639-1 code, or ``und``."""
    return _detected(text.lstrip()[:_MAX_EXAMINED])


@lru_cache(64)  # several steps of one query ask for the language of the same text
def _detected(sample: str) -> str:
    script, letters = _leading_script(sample)
    if script in _BY_SCRIPT:
        return _BY_SCRIPT[script]
    if script not in _CANDIDATES or letters < _MIN_LETTERS:
        return UNDETERMINED
    words = {word.casefold() for word in _WORD_RE.findall(sample)}
    candidates, classifier = _CANDIDATES[script], _classifier()
    ranked = [(language, 1.0) for language in sorted(candidates)] if classifier is None else classifier.rank(sample)
    belief = {language: p * _COMMON.get(language, 1.0) for language, p in ranked if language in candidates}
    for language in section("stopwords").keys() & belief.keys():
        belief[language] *= _STOPWORD_WEIGHT ** min(len(words & stopwords(language)), 6)
    return max(belief, key=lambda language: belief[language])


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
    latin = weights.pop(Script.LATIN, None)
    best = max(weights, key=lambda script: weights[script], default=Script.LATIN)
    if latin is not None and weights.get(best, 0.0) < _MIN_SHARE * total:
        best = Script.LATIN
    return best, counts[best]


# Forms of a text: as a cache key, and as read by the tokenizer.

# Control characters but those that are white space.
_CONTROL_RE: Final = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]+")
_SURROGATE_RE: Final = re.compile("[\ud800-\udfff]")
_REPLACEMENT: Final = "\ufffd"

# Invisible characters that stand inside words: soft hyphen, joiners, direction marks, variation selectors, and the
# zero-width space, which some Khmer and Burmese texts put between words and others do not.
_INVISIBLE_RE: Final = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]+")
# What NFKC would glue to the word or number before it: 6½, 10⁶, word¹, 5.º, Name™.
_TRADEMARK_RE: Final = re.compile("[\u2120\u2122]|(?<=[0-9])\\.?[\u00aa\u00ba]")
_FRACTION_RE: Final = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_SUPERSCRIPT_RE: Final = re.compile(r"(?:(?<=\d)|(?<=[^\W\d]{4}))(?=[⁰¹²³⁴-⁹])(?<![⁰¹²³⁴-⁹])")
_DIGIT_RE: Final = re.compile(r"(?![0-9])\d")
# One order for the tone mark and the circle of Thai and Lao AM, which NFKC takes apart, and one spelling of SARA AE.
_THAI_AM_RE: Final = re.compile("([\u0e48-\u0e4b](?=\u0e4d\u0e32)|[\u0ec8-\u0ecb](?=\u0ecd\u0eb2))(.)")


def lowered(text: str) -> str:
    """Return a text without capitals, each character at its old place."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)


def normalise_query(text: str) -> str:
    """Bring a query to the form under which caches keep it."""
    text = _SURROGATE_RE.sub(_REPLACEMENT, _CONTROL_RE.sub("", text))
    return " ".join(unicodedata.normalize("NFKC", text).split())


def lexical_form(text: str) -> str:
    """Bring a text to the form that the tokenizer cuts, with letter case kept."""
    if text.isascii():
        return text
    text = _TRADEMARK_RE.sub("", _INVISIBLE_RE.sub("", text))
    text = _SUPERSCRIPT_RE.sub(" ", _FRACTION_RE.sub(" ", text))
    text = unicodedata.normalize("NFKC", text)
    text = _THAI_AM_RE.sub(r"\2\1", text).replace("\u0e40\u0e40", "\u0e41")
    return _DIGIT_RE.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)
