"""Cases for the citation check, made from the sample corpus: true and false sentences with the passages they cite.

The halves are told apart by a hash of the sentence that a case was made from, so that no sentence of the corpus is in
both. Thresholds of the check are fixed on the half ``dev``; the half ``held`` is only measured.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from answer_nodes import make_node
from citation_changes import changed_date, changed_number, flipped, other_form, swapped_name
from citation_material import ADDED, FREE, INVENTED, PARAPHRASES

from agentic_retriever.sample import DATA
from agentic_retriever.synthesis import assemble, check_citations
from agentic_retriever.text import split_sentences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentic_retriever.synthesis import CitedText, ContextPassage
    from agentic_retriever.text import Sentence

LANGUAGES = ("en", "es", "th")
PER_KIND = 12
TRUE_KINDS = (
    "quote", "other form", "paraphrase", "free paraphrase", "two passages", "marker forgotten", "invented marker, true",
)  # fmt: skip
FALSE_KINDS = (
    "changed number", "changed number, paraphrase", "changed date", "swapped name", "flipped negation",
    "near miss, free", "another document", "added clause", "invented", "invented with its marker",
)  # fmt: skip
_CHUNK = 1_200


@dataclass(frozen=True)
class Chunk:
    """A piece of a document as it would be retrieved."""

    doc: str
    title: str
    section: str
    text: str
    start: int


@dataclass(frozen=True)
class Case:
    """A sentence of an answer, the passages it was written from, and whether they support it."""

    language: str
    kind: str
    origin: str
    answer: str
    chunks: tuple[Chunk, ...]
    supported: bool
    cited: tuple[int, ...] = ()

    @property
    def half(self) -> str:
        """``dev`` or ``held``."""
        return "dev" if hashlib.sha256(self.origin.encode()).digest()[0] % 2 else "held"

    @property
    def passages(self) -> tuple[ContextPassage, ...]:
        """What the numbers of its markers stand for."""
        nodes = [
            make_node(
                c.text, start=c.start, doc_id=c.doc, node_id=f"{c.doc}:{c.start}", title=c.title, section=c.section
            )
            for c in self.chunks
        ]
        return assemble(nodes, max_chars=10**6)

    def checked(self) -> CitedText:
        """The answer, checked."""
        return check_citations(self.answer, self.passages, language=self.language)


@lru_cache(1)
def cases() -> tuple[Case, ...]:
    """All cases, the same on every machine."""
    return tuple(case for language in LANGUAGES for case in _Maker(language).all())


@lru_cache(4)
def chunks(language: str) -> tuple[Chunk, ...]:
    """The corpus of a language in pieces of some 1,200 characters."""
    folder = {"en": "handbook", "es": "homologacion", "th": "land_deeds"}[language]
    found: list[Chunk] = []
    for path in sorted((DATA / folder).iterdir()):
        if path.suffix in (".md", ".txt"):
            found += _cut(path.stem, path.read_text(encoding="utf-8"))
    if language == "th":
        for line in (DATA / folder / "deeds.jsonl").read_text(encoding="utf-8").splitlines()[:40]:
            row = json.loads(line)
            found.append(Chunk(row["_id"], row["title"], "", row["text"], 0))
    return tuple(found)


def _cut(doc: str, text: str) -> Iterator[Chunk]:
    title = re.search(r'^title: "?(.*?)"?$', text, re.MULTILINE)
    begin = text.index("---", 3) + 4 if text.startswith("---") else 0
    section, start, at = "", begin, begin
    for block in re.finditer(r".+?(?:\n\s*\n|\Z)", text[begin:], re.DOTALL):
        heading = re.match(r"#+ (.*)", block[0])
        if at - start > _CHUNK and heading:
            yield Chunk(doc, title[1] if title else doc, section, text[start:at], start)
            start = at
        if heading and start == at:
            section = heading[1].strip()
        at = begin + block.end()
    yield Chunk(doc, title[1] if title else doc, section, text[start:at], start)


class _Maker:
    def __init__(self, language: str) -> None:
        self.language = language
        self.chunks = chunks(language)
        self.sentences = sorted(
            {(s.text, at) for at, chunk in enumerate(self.chunks) for s in _prose(chunk.text)},
            key=lambda pair: (hashlib.sha256(("order " + pair[0]).encode()).digest(), pair[1]),
        )
        self.turn = 0

    def all(self) -> Iterator[Case]:
        yield from self.made("quote", lambda s: s, supported=True)
        yield from self.made("other form", partial(other_form, language=self.language), supported=True)
        yield from self.paraphrases()
        yield from self.two_passages()
        yield from self.made("marker forgotten", lambda s: s, supported=True, marker="")
        yield from self.made("invented marker, true", lambda s: s, supported=True, marker=" [97]")
        yield from self.made("changed number", changed_number, supported=False)
        yield from self.made("changed date", partial(changed_date, language=self.language), supported=False)
        yield from self.made("swapped name", partial(swapped_name, language=self.language), supported=False)
        yield from self.made("flipped negation", partial(flipped, language=self.language), supported=False)
        yield from self.elsewhere()
        yield from self.made("added clause", self.added, supported=False)
        yield from self.invented()

    def origin(self, sentence: str) -> str:
        """What the half of a case hangs on: the words by which a paraphrase names its sentence, or the sentence."""
        named = [words for words, *_ in (*PARAPHRASES[self.language], *FREE[self.language])]
        return next((words for words in named if words.casefold() in sentence.casefold()), sentence)

    def case(
        self, kind: str, origin: str, at: int, sentence: str, *, supported: bool, marker: str | None = None
    ) -> Case:
        """A case with the cited chunk among three others."""
        self.turn += 1
        place = self.turn % 4
        others = list(self.others(at, 3))
        others.insert(place, self.chunks[at])
        marker = f" [{place + 1}]" if marker is None else marker
        return Case(self.language, kind, origin, f"{sentence}{marker}", tuple(others), supported, (place + 1,))

    def others(self, at: int, count: int) -> list[Chunk]:
        """Chunks of other documents, spread over the corpus."""
        found = [c for c in self.chunks if c.doc != self.chunks[at].doc]
        return [found[(7 * self.turn + 11 * i) % len(found)] for i in range(count)]

    def made(
        self, kind: str, change: Callable[[str], str | None], *, supported: bool, marker: str | None = None
    ) -> Iterator[Case]:
        """Cases by changing sentences of the corpus, each kind starting from another place."""
        skip = 5 * (TRUE_KINDS + FALSE_KINDS).index(kind)
        made = 0
        for sentence, at in [*self.sentences[skip:], *self.sentences[:skip]]:
            changed = change(sentence)
            if changed and (supported or changed != sentence):
                made += 1
                yield self.case(kind, self.origin(sentence), at, changed, supported=supported, marker=marker)
            if made == PER_KIND:
                return

    def paraphrases(self) -> Iterator[Case]:
        for words, said in PARAPHRASES[self.language]:
            at = next(i for i, chunk in enumerate(self.chunks) if words.casefold() in chunk.text.casefold())
            yield self.case("paraphrase", words, at, said, supported=True)
            changed = changed_number(said)
            if changed:
                yield self.case("changed number, paraphrase", words, at, changed, supported=False)

        for words, true, false in FREE[self.language]:
            at = next(i for i, chunk in enumerate(self.chunks) if words.casefold() in chunk.text.casefold())
            yield self.case("free paraphrase", words, at, true, supported=True)
            yield self.case("near miss, free", words, at, false, supported=False)

    def two_passages(self) -> Iterator[Case]:
        joint = {"en": "; ", "es": "; ", "th": " และ"}[self.language]
        pairs = [(a, b) for a, b in zip(self.sentences[::2], self.sentences[1::2], strict=False) if a[1] != b[1]]
        for (first, one), (second, other) in pairs[:PER_KIND]:
            joined = first.rstrip(".") + joint + second
            given = (self.chunks[one], *self.others(one, 1), self.chunks[other])
            yield Case(
                self.language,
                "two passages",
                self.origin(first),
                f"{joined} [1][3]",
                given,
                supported=True,
                cited=(1, 3),
            )

    def elsewhere(self) -> Iterator[Case]:
        """A sentence of a document that is not among the passages."""
        for sentence, at in self.sentences[::-1][:PER_KIND]:
            self.turn += 1
            given = tuple(self.others(at, 4))
            yield Case(
                self.language,
                "another document",
                self.origin(sentence),
                f"{sentence} [{self.turn % 4 + 1}]",
                given,
                False,
            )

    def invented(self) -> Iterator[Case]:
        for at, sentence in enumerate(INVENTED[self.language]):
            place = (at * 17 + 3) % len(self.chunks)
            yield self.case("invented", sentence, place, sentence, supported=False)
            yield self.case("invented with its marker", sentence, place, sentence, supported=False, marker=" [42]")

    def added(self, sentence: str) -> str | None:
        self.turn += 1
        return sentence.rstrip(".") + ADDED[self.language][self.turn % len(ADDED[self.language])]


def _prose(text: str) -> list[Sentence]:
    """Sentences of running text, neither headings nor tables, that stand alone."""
    found = []
    for s in split_sentences(text):
        bare = s.text
        plain = (
            not re.match(r"[#|>*-]|\d+[.)]|[a-z]\)|\*\*", bare)
            and "|" not in bare
            and "\n" not in bare
            and ":" not in bare
        )
        if plain and 35 <= len(bare) <= 240:
            found.append(s)
    return found
