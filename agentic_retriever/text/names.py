"""Names in a sentence: capitalised words, abbreviations and codes, and in Thai what stands behind a title or a kind."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agentic_retriever.text.language_files import listed, stopwords
from agentic_retriever.text.numbers import currency_words
from agentic_retriever.text.tokens import fold

_WORD: Final = re.compile(r"[^\W_]+(?:[-'’./&+][^\W_]+)*")
_OPENS: Final = re.compile(r"(?:^|[.!?:;…\n|«“\"¿¡(]|^\s*[-*•]|\d[.)])[\s*_>#«“\"'(¿¡]*$")
# Languages that write every noun with a capital.
_CAPITAL_NOUNS: Final = frozenset({"de", "lb"})

_PERSON: Final = "|".join(listed("names", "people"))
_THAI_NAME: Final = re.compile(
    rf"(?P<kind>{_PERSON}|{'|'.join(listed('names', 'kinds'))}) ?(?P<name>[\u0e01-\u0e3a\u0e40-\u0e4e]{{2,12}})"
)
_SAME_SHARE: Final = 0.7
_MIN_PREFIX: Final = 3


@dataclass(frozen=True, slots=True)
class Name:
    start: int
    end: int
    text: str
    code: bool
    opening: bool = False

    @property
    def key(self) -> str:
        return name_key(self.text)


def name_key(word: str) -> str:
    """A word as names are compared: without case, accents and genitive, currencies under one code."""
    bare = fold(re.sub("['’]s?$", "", word.casefold()))
    return currency_words().get(bare, bare)


def find_names(text: str, language: str = "und") -> list[Name]:
    """Find the names of a text in a script that has capitals."""
    shouted = text.upper() == text
    words = list(_WORD.finditer(text))
    common = stopwords(language) if language != "und" else stopwords("en") | stopwords("es")
    found: list[Name] = []
    for at, word in enumerate(words):
        kind = _kind(word[0], shouted=shouted)
        if kind == "code":
            found.append(Name(word.start(), word.end(), word[0], code=True))
        elif kind == "capital" and word[0].casefold() not in common:
            opening = _OPENS.search(text[max(0, word.start() - 8) : word.start()]) is not None
            if language in _CAPITAL_NOUNS:
                follows = at > 0 and words[at - 1][0][0].isupper() and text[words[at - 1].end() : word.start()] == " "
                counts = opening or follows or _leads_on(text, words, at)
            else:
                counts, opening = True, opening and not _leads_on(text, words, at)
            if counts:
                found.append(Name(word.start(), word.end(), word[0], code=False, opening=opening))
    return found


def keys_in(text: str) -> frozenset[str]:
    """Give all the words of a text as names are compared, and the parts of compound ones."""
    words = _WORD.findall(text)
    parts = (part for word in words for part in re.split(r"[-'’./&+]", word) if part)
    return frozenset(map(name_key, {*words, *parts})) | frozenset(
        unit for sign, unit in currency_words().items() if not sign.isascii() and sign in text
    ) | ({"usd"} if "$" in text else frozenset())  # fmt: skip


def foreign_thai_names(sentence: str, near: str, whole: str) -> Iterator[str]:
    """Find the Thai names of a sentence, behind a title or a kind of place, that a source does not have."""
    for match in _THAI_NAME.finditer(sentence):
        group = _PERSON if match["kind"] in _PERSON.split("|") else match["kind"]
        nearby = _behind(group, near)
        others = nearby or _behind(group, whole)
        known = any(_same(match["name"], other) for other in others)
        if not (known if others else match["name"][: _MIN_PREFIX + 1] in whole):
            yield match[0]


def _behind(kinds: str, text: str) -> list[str]:
    return [match["name"] for match in _THAI_NAME.finditer(text) if match["kind"] in kinds.split("|")]


def _same(name: str, other: str) -> bool:
    shorter = min(len(name), len(other))
    common = next((i for i in range(shorter) if name[i] != other[i]), shorter)
    return common >= max(min(_MIN_PREFIX, shorter), _SAME_SHARE * shorter)


def _kind(word: str, *, shouted: bool) -> str:
    if any(char.isdecimal() for char in word):
        return "code" if word[0].isalpha() and any(char.isupper() for char in word) else ""
    letters = [char for char in word if char.isalpha()]
    if not shouted and len(letters) > 1 and all(char.isupper() for char in letters):
        return "code"
    return "capital" if word[0].isupper() and len(word) > 1 and not shouted else ""


def _leads_on(text: str, words: Sequence[re.Match[str]], at: int) -> bool:
    """Tell whether a capitalised word follows at once: "Maria Lopez"."""
    if at + 1 == len(words):
        return False
    between = text[words[at].end() : words[at + 1].start()]
    return between == " " and _kind(words[at + 1][0], shouted=False) == "capital"
