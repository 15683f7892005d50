"""Parts of documents by their number: those that a question asks for, and where the references of a text lead to."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from agentic_retriever.indices.derived import Outline
from agentic_retriever.text import Tokenizer
from agentic_retriever.text.references import Reference, any_of

_SECTIONS: Final = any_of("sections", "asked_sections")
_UNSPACED: Final = any_of("unspaced_sections", "unspaced_asked_sections")
_ARTICLES: Final = any_of("articles", "asked_articles")
_NUMBER: Final = r"(?:[0-9]{1,4}|[A-Z](?=\.[0-9]))(?:\.[0-9]{1,3}){0,5}(?:\s?(?:bis|ter|quater|quinquies)\b)?"
_JOINT: Final = (
    rf"\s*(?:,|\b(?:{any_of('joints', 'asked_joints')})\b|{any_of('unspaced_joints', 'unspaced_asked_joints')})\s*"
)
_ASKED_RE: Final = re.compile(
    rf"(?:(?<!\w)(?:{_SECTIONS})|{_UNSPACED}|(?P<article>(?<!\w)(?:{_ARTICLES})|{any_of('unspaced_articles')}))\s*"
    rf"(?P<numbers>{_NUMBER}(?:{_JOINT}{_NUMBER}){{0,8}})(?![\w%]|\s%)"
    rf"|第?\s?(?P<before>{_NUMBER})\s?(?:[节節章项項款]|部分|小节|(?P<clause>[条條]))"
    rf"|^\W*(?P<alone>[0-9]{{1,4}}(?:\.[0-9]{{1,3}}){{1,5}})\W*$",
    re.IGNORECASE,
)
_NUMBER_RE: Final = re.compile(_NUMBER, re.IGNORECASE)
_DIGIT_RE: Final = re.compile(r"\d")
_MAX_ASKED: Final = 10


class AskedPart(NamedTuple):
    kind: str  # "section" or "article"
    number: str


def asked_parts(question: str) -> list[AskedPart]:
    """Read the numbers of the parts that a question names, in its order."""
    if _DIGIT_RE.search(question) is None:  # as most questions have none
        return []
    digits = (str(unicodedata.decimal(char)) if char.isdecimal() else char for char in question[:4_000])
    found: dict[AskedPart, None] = {}
    for match in _ASKED_RE.finditer("".join(digits)):
        kind = "article" if match["article"] or match["clause"] else "section"
        for number in _NUMBER_RE.findall(match["numbers"] or match["before"] or match["alone"]):
            found.setdefault(AskedPart(kind, " ".join(number.casefold().split())))
    return list(found)[:_MAX_ASKED]


def reading_order(number: str) -> tuple[tuple[int, str], ...]:
    """Return what numbers of parts sort by: 2 before 10, 6.2 before 6.2.1, 4 before 4 bis."""
    return tuple((int(part) if part.isdecimal() else 10_000, part) for part in re.findall(r"[0-9]+|[^\W\d]+", number))


def nearest_numbers(number: str, known: Iterable[str], count: int = 2) -> list[str]:
    """Return the numbers that come nearest to one that does not exist, in reading order."""
    places = {one: [part for part, _ in reading_order(one)] for one in known}
    wanted = [part for part, _ in reading_order(number)]

    def distance(one: str) -> tuple[list[int], int]:
        parts = [*places[one], *[0] * (len(wanted) - len(places[one]))]
        return [abs(mine - theirs) for mine, theirs in zip(wanted, parts, strict=False)], len(places[one])

    as_deep = [one for one in places if len(places[one]) <= len(wanted)] or list(places)
    return sorted(sorted(as_deep, key=distance)[:count], key=reading_order)


# Where the references of a text lead to in an index

_OWN_RE: Final = re.compile(r"\b(?:this|these|est[ea]s?|presente|mism[oa])\b|นี้", re.IGNORECASE)
_ARTICLE_WORD_RE: Final = re.compile(r"^(?:the|el|la|los|las|le|les|o|os|as)\s+", re.IGNORECASE)


class ReferenceMap:
    """Resolves references to chunks: in the document that is named, in its own, or the only one that has it."""

    def __init__(self, outlines: Mapping[str, Outline]) -> None:
        self._outlines = outlines
        self._tokenizer = Tokenizer()
        self._titled: dict[str, set[str]] = {}
        self._with_article: dict[str, list[str]] = {}
        for doc_id, outline in outlines.items():
            for term in self._tokenizer.tokens(outline.title):
                self._titled.setdefault(term, set()).add(doc_id)
            for number in outline.articles:
                self._with_article.setdefault(number, []).append(doc_id)

    def resolve(self, reference: Reference, doc_id: str) -> Sequence[str]:
        """Return the chunks that a reference means, in reading order; none when it leads nowhere."""
        known = (self._outlines[one] for one in self._documents(reference, doc_id) if one in self._outlines)
        parts = (one.articles if reference.kind == "article" else one.sections for one in known)
        return next(filter(None, (_part(one, reference.number) for one in parts)), ())

    def _documents(self, reference: Reference, doc_id: str) -> Iterator[str]:
        target = _ARTICLE_WORD_RE.sub("", reference.target, count=1)
        other = bool(target) and not _OWN_RE.search(target)
        named = self._named(target) if other else set()
        if named or (other and not target[0].islower()):
            yield from sorted(named, key=lambda found: (found != doc_id, found))
            return
        yield doc_id
        others = self._with_article.get(reference.number, []) if reference.kind == "article" else []
        if len(others) == 1:
            yield others[0]

    def _named(self, target: str) -> set[str]:
        """Return the documents whose titles hold the most of the first words, where these say enough."""
        best = set(self._outlines)
        length = 0
        for term in self._tokenizer.tokens(target):
            narrowed = best & self._titled.get(term, set())
            if not narrowed:
                break
            best, length = narrowed, length + 1
        # One common word, such as "policy", names nothing.
        return best if length >= 2 or (length and len(best) == 1) else set()


def _part(parts: Mapping[str, Sequence[str]], number: str) -> Sequence[str]:
    """Return the chunks of a part; of what it consists of where it has no text itself; of what it lies in otherwise."""
    inside = [chunk for known, chunks in parts.items() if known.startswith(f"{number}.") for chunk in chunks]
    if number not in parts and inside:
        return inside
    while number not in parts and "." in number:
        number = number.rpartition(".")[0]
    return parts.get(number, ())
