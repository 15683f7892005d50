"""Questions of every intent, made of a corpus itself so that their right answers are known by how they were made.

Headings and titles that are asked are taken out of the text, by as many characters, so that offsets stay; what else is
named in a question stands in the text, as in life. The wordings are the section ``intents`` of the language files; a
language without one is asked in bare topics. What people asked of gold spans, or of judged documents, takes the
place of made lookups.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, zip_longest
from pathlib import PurePath
from typing import Final, NamedTuple, TypeVar

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import Dataset, LabelledQuery
from agentic_retriever.evaluation.measures import Span
from agentic_retriever.filters import elements, parse_moment
from agentic_retriever.ingestion import SourceDocument
from agentic_retriever.ingestion.documents import parse_front_matter
from agentic_retriever.ingestion.structure import Block, scan_blocks
from agentic_retriever.text import detect_language
from agentic_retriever.text.language_files import section
from agentic_retriever.understanding.fields import FieldDictionary, FieldInfo, FieldKind

MOST: Final = 30  # questions of one intent
INTENTS: Final = ("lookup", "two-part", "comparison", "reference", "document", "filter", "exact", "overview")
BARE: Final = {
    "lookup": ["{topic}"],
    "two_part": ["{first} {second}"],
    "comparison": ["{first} / {second}"],
    "section": ["§ {number}"],
    "section_in": ["§ {number}, {document}"],
    "article": ["§ {number}"],
    "article_in": ["§ {number}, {document}"],
    "document": ["{topic}"],
    "value": ["{value}", "{field}: {value}"],
    "person": ["{value}"],
    "range": ["{field}: {low}-{high}"],
    "value_topic": ["{topic}, {value}"],
    "exact": ["{string}"],
    "overview": ["{topic}"],
}
_WHY_NOT: Final = {
    "lookup": "no heading or title is its own, with text below it",
    "two-part": "there are no two lookups of different parts",
    "comparison": "no two neighbouring sections have short titles, and no two names belong to one section each",
    "reference": "no section or article has a number that tells where it is",
    "document": "there are no several documents with titles of their own",
    "filter": "no metadata field has values that some documents share and others do not",
    "exact": "no code, option, name in code or quoted string stands in one to three places",
    "overview": "no section with a title has several parts",
}
_MIN_BODY: Final = 60  # characters of a part that can be wanted
_PARTS: Final = range(3, 13)  # parts of a section that can be wanted all at once
_PLACES: Final = 3  # where an exact string may stand
_LONGEST: Final = 60  # characters of a value
_TITLE: Final = range(8, 161)  # characters of what is asked
_NARROW: Final = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # whose characters say more
_LABEL: Final = re.compile(  # "4.2 ", "4.2", "7. ", "Chapter 13. ", "Part IV - "
    r"(?P<number>\d{1,3}(?:\.\d{1,3})+|\d{1,3}(?=[.:)]|$))(?:[.:)]?\s+|[.:)]?$)"
    r"|\w+\s+(?:[\d.]+|[IVXLC]+)(?:[.:)]\s+|\s+[–—-]\s+)|第\s*\w{1,4}\s*[章节節条條部]\s*"
)
_STRINGS: Final = re.compile(
    r"(?<![\w-])--[A-Za-z][\w-]{2,30}|`[^`\n]{3,40}`|[\"“«„「][^\"”»“」\n]{8,60}[\"”»“」]"
    r"|(?<![\w./-])(?=[\w-]*[A-Z])(?=[\w-]*\d)[A-Za-z0-9][\w-]{3,24}(?![\w-])|\b[A-Za-z]\w*_\w+|(?<!\S)/[a-z]\w+(?:/[\w.-]*\w)+"
)
_NAMES: Final = re.compile(r"[^\W\d_]\w*(?:[-+.]\w+)*|[ァ-ヶー]{3,}")
_OFTEN: Final = 3
_SHORT: Final = 5  # words

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A section, or a whole document that has none."""

    document: SourceDocument
    span: Span  # with the parts below it, without its heading
    heading: tuple[int, int] = (0, 0)
    title: str = ""  # without its number
    number: str = ""
    article: str = ""
    level: int = 0
    parts: tuple[Span, ...] = ()  # what it consists of, its own text included
    above: int = -1  # place of the part that it lies in

    @property
    def is_leaf(self) -> bool:
        return not self.parts


def parts_of(document: SourceDocument) -> list[Part]:
    """Divide a document along its headings."""
    found: list[Part] = []
    heads = [(block, block.heading) for block in _blocks(document) if block.heading is not None]
    whole = len(document.text.rstrip())
    open_ones: list[int] = []
    for at, (block, heading) in enumerate(heads):
        same = (later.start for later, one in heads[at + 1 :] if one.level <= heading.level)
        end, begin = next(same, whole), block.start if heading.inline else block.end
        while open_ones and found[open_ones[-1]].level >= heading.level:
            open_ones.pop()
        label = _LABEL.match(heading.title)
        number = heading.number or (label and label["number"]) or ""
        found.append(
            Part(
                document=document, span=_trimmed(document, begin, end), heading=(block.start, begin),
                title=(heading.title[label.end() :] if label else heading.title).strip(), number=number,
                article=heading.article, level=heading.level, above=open_ones[-1] if open_ones else -1,
            )
        )  # fmt: skip
        open_ones.append(at)
    return [_with_parts(one, at, found) for at, one in enumerate(found)]


def _with_parts(part: Part, at: int, every: Sequence[Part]) -> Part:
    below = [one for one in every if one.above == at]
    if not below:
        return part
    own = _trimmed(part.document, part.span.start, below[0].heading[0])
    spans = [own, *(_trimmed(part.document, one.heading[0], one.span.end) for one in below)]
    return replace(part, parts=tuple(span for span in spans if span.end - span.start >= _MIN_BODY))


def _blocks(document: SourceDocument) -> list[Block]:
    front = parse_front_matter(document.text) if document.kind == "md" else None
    return scan_blocks(document.text, start=front.end if front else 0)


def _trimmed(document: SourceDocument, start: int, end: int) -> Span:
    text = document.text[start:end]
    return Span(document.doc_id, end - len(text.lstrip()) if text.strip() else start, start + len(text.rstrip()))


class Asked(NamedTuple):
    """One question that was made: its text, and the spans or, without any, the documents that it wants."""

    text: str
    spans: tuple[Span, ...]
    documents: Mapping[str, int] = {}
    made: bool = True


def intent_dataset(source: Dataset, *, seed: int = 0) -> Dataset:
    """Make questions of every intent of the documents of a data set; which could not be made stands in its notes."""
    if not source.documents:
        raise EvaluationError(
            f"{source.path} holds no documents to make questions of; name a folder of documents, a BEIR folder, a "
            "folder with docs/ and questions.jsonl, or an index of the data directory"
        )
    bed = _Bed(source, seed)
    made = bed.make()
    queries = [
        LabelledQuery(
            query_id=f"{intent}-{at:02d}", text=one.text, index=source.name, intent=intent, spans=one.spans,
            relevance=one.documents or {span.name: 1 for span in one.spans}, pseudo=one.made,
        )
        for intent, asked in made.items()
        for at, one in enumerate(asked, start=1)
    ]  # fmt: skip
    lacking = [f"{source.name}: no {intent} question: {_WHY_NOT[intent]}" for intent in INTENTS if not made[intent]]
    if not queries:
        raise EvaluationError(f"no question can be made of {source.path}: " + "; ".join(lacking))
    counts = ", ".join(f"{intent} {len(asked)}" for intent, asked in made.items() if asked)
    note = f"the questions of {source.name} were made of its own documents ({counts}); what they ask was taken out"
    return replace(source, documents=tuple(bed.documents), queries=tuple(queries), notes=(note, *lacking))


class Wish(NamedTuple):
    """What can be wanted of a field: the kind of question, its words, and the documents that satisfy it."""

    kind: str
    words: dict[str, str]
    gold: dict[str, int]


class _Bed:
    """Makes the questions of one corpus; what is asked is taken out of ``documents`` as it goes."""

    def __init__(self, source: Dataset, seed: int) -> None:
        self._source, self._seed = source, seed
        self.documents = sorted(source.documents, key=lambda one: one.doc_id)
        self._texts = {one.doc_id: one.text for one in self.documents}
        self._parts = [parts_of(one) for one in self.documents]
        self._every = [part for parts in self._parts for part in parts]
        self._leaves = [part for part in self._every if part.is_leaf and _length(part.span) >= _MIN_BODY]
        whole = [(one, parts) for one, parts in zip(self.documents, self._parts, strict=True) if not parts]
        self._records = [_record(one) for one, _ in whole if len(one.text.strip()) >= _MIN_BODY]
        self._titles = Counter(part.title for part in self._every)
        self._whole = "\n".join(" ".join(f"{one.title}\n{one.text}".split()) for one in self.documents).casefold()
        self._taken: set[str] = set()  # titles
        chance = self._chance("documents")
        titled = [one for one in self.documents if _is_askable(_bare(one.title))]
        self._hidden = {one.doc_id for one in chance.sample(titled, len(titled) // 2)}  # whose titles may be taken out

    def make(self) -> dict[str, list[Asked]]:
        lookups = self._people() or self._lookups()
        makers: dict[str, Callable[[], Iterable[Asked]]] = {
            "document": self._documents, "two-part": lambda: self._two_parts(lookups), "reference": self._references,
            "comparison": self._comparisons, "overview": self._overviews, "filter": self._filters,
            "exact": self._exacts,
        }  # fmt: skip
        made = {"lookup": lookups} | {intent: list(maker()) for intent, maker in makers.items()}
        return {intent: made[intent] for intent in INTENTS}

    def _chance(self, what: str) -> random.Random:
        return random.Random(f"{self._seed} {what}")  # noqa: S311 - a sample, no secret

    def _is_known_by(self, title: str) -> bool:
        """Tell whether a title can be asked, and stands in few places."""
        return _is_askable(title) and self._whole.count(" ".join(title.split()).casefold()) <= _PLACES

    def _some(self, what: str, found: Iterable[T], fits: Callable[[T], object] = lambda _: True) -> list[T]:
        every = list(found)
        self._chance(what).shuffle(every)
        return list(islice(filter(fits, every), MOST))

    def _say(self, kind: str, doc_id: str, at: int, **words: str) -> str:
        """Word a question in the language of a document, the wordings in turn."""
        table: Mapping[str, list[str]] = section("intents").get(detect_language(self._texts[doc_id]), {})
        ways = table.get(kind) or BARE[kind]
        return ways[at % len(ways)].format(**words)

    # What people asked, or a heading that is taken out.

    def _people(self) -> list[Asked]:
        asked = [one for one in self._source.queries if not one.pseudo]
        return [
            Asked(one.text, one.spans, {} if one.spans else one.relevance, made=False)
            for one in self._some("people", asked)
        ]

    def _lookups(self) -> list[Asked]:
        hidden = self._hidden
        every = [part for part in self._leaves if part.above >= 0 or part.title != _bare(part.document.title)]
        every += [part for part in self._records if part.document.doc_id not in hidden and _names_more(part.document)]
        chosen = self._some("lookup", every, self._is_own)
        self._take_out(part.title for part in chosen)
        return [self._ask(part, at) for at, part in enumerate(chosen)]

    def _is_own(self, part: Part) -> bool:
        """Tell whether a title can be asked: nothing else is called so, and it can be taken out of all texts."""
        title = " ".join(part.title.split()).casefold()
        if not self._is_known_by(part.title):
            return False
        heading = part.document.text[slice(*part.heading)]
        inside = not heading or _pattern(part.title).search(heading)
        alike = sum(title in " ".join(one.split()).casefold() for one in self._titles.elements())
        held = (str(value).casefold() for one in self.documents for value in one.metadata.values())
        return bool(inside) and alike <= 1 and not any(title in value for value in held if value)

    def _ask(self, part: Part, at: int) -> Asked:
        doc_id, title = part.document.doc_id, " ".join(part.title.split())
        text = title if title.endswith(("?", "？")) else self._say("lookup", doc_id, at, topic=title)
        return _of_parts(text, [part.span], [part.document])

    def _take_out(self, titles: Iterable[str]) -> None:
        patterns = [_pattern(title) for title in titles if title]
        self._taken |= {pattern.pattern for pattern in patterns}
        for at, document in enumerate(self.documents):
            text, title = document.text, document.title
            for pattern in patterns:
                text, title = pattern.sub(_blank, text), pattern.sub("", title)
            self.documents[at] = replace(document, text=text, title=title.strip())

    def _is_there(self, part: Part) -> bool:
        return _pattern(part.title).pattern not in self._taken

    def _two_parts(self, lookups: Sequence[Asked]) -> Iterator[Asked]:
        narrow = [one for one in lookups if len(one.spans or one.documents) <= _PLACES]
        for at, (first, second) in enumerate(pairwise([*narrow, *narrow[:1]] if len(narrow) > 2 else narrow)):
            apart = not first.documents.keys() & second.documents.keys()
            if apart and not any(one.is_found_by(*other) for one in first.spans for other in second.spans):
                doc_id = next(iter(first.spans)).doc_id if first.spans else next(iter(first.documents))
                joined = self._say(
                    "two_part", doc_id, at, first=first.text, second=second.text, then=_lowered(second.text)
                )
                both = dict.fromkeys([*first.documents, *second.documents], 1)
                yield Asked(joined, (*first.spans, *second.spans), both, made=first.made)

    # What stays in the text.

    def _documents(self) -> Iterator[Asked]:
        every = [one for one in self.documents if one.doc_id in self._hidden]
        own = Counter(_bare(one.title) for one in self.documents)
        every = [one for one in every if own[_bare(one.title)] == 1]
        chosen = self._some("document", every, lambda one: self._is_known_by(_bare(one.title)))
        if len(self.documents) > 1:
            self._take_out(_bare(one.title) for one in chosen)
            for at, one in enumerate(chosen):
                asked = self._say("document", one.doc_id, at, topic=_bare(one.title))
                yield Asked(asked, (), {one.doc_id: 1})

    def _references(self) -> list[Asked]:
        numbered = [one for one in self._every if (one.article or one.number) and _length(one.span) >= _MIN_BODY]
        count = Counter((one.article, one.number) for one in numbered)
        held = Counter((one.document.doc_id, one.article, one.number) for one in numbered)
        titles = Counter(_bare(one.title) for one in self.documents)
        open_ones = [
            one for one in numbered
            if held[one.document.doc_id, one.article, one.number] == 1
            and (count[one.article, one.number] == 1 or (
                one.document.doc_id not in self._hidden and titles[_bare(one.document.title)] == 1
                and _is_askable(_bare(one.document.title))
            ))
        ]  # fmt: skip
        made = []
        for at, one in enumerate(self._some("reference", open_ones)):
            kind = f"{'article' if one.article else 'section'}{'' if count[one.article, one.number] == 1 else '_in'}"
            words = {"number": one.article or one.number, "document": _bare(one.document.title)}
            made.append(Asked(self._say(kind, one.document.doc_id, at, **words), (one.span,)))
        return made

    def _comparisons(self) -> list[Asked]:
        pairs = [(one, other) for one, other in pairwise(self._short()) if _are_siblings(one, other)]
        pairs += list(pairwise(self._named())) if len(pairs) < MOST else []
        made = []
        for at, (one, other) in enumerate(self._some("comparison", pairs)):
            words = {"first": one.title, "second": other.title}
            asked = self._say("comparison", one.document.doc_id, at, **words)
            made.append(_of_parts(asked, [one.span, other.span], [one.document, other.document]))
        return made

    def _short(self) -> Iterator[Part]:
        """Go through the sections, and the documents without any, whose titles can stand side by side."""
        for part in (*self._every, *self._records):
            short = len(part.title.split()) <= _SHORT and _is_name(part.title) and self._is_there(part)
            if short and _length(part.span) >= _MIN_BODY:
                yield part

    def _named(self) -> list[Part]:
        """Return sections by a name that stands several times in each, always with a capital, and nowhere else."""
        places: dict[str, Counter[int]] = {}
        units = [*self._leaves, *self._records]
        texts = {document.doc_id: document.text for document in self.documents}
        for at, part in enumerate(units):
            for name in _NAMES.findall(texts[part.span.doc_id][part.span.start : part.span.end]):
                places.setdefault(name, Counter())[at] += 1
        names: dict[int, str] = {}
        for name, often in sorted(places.items()):
            capital = name[0].isupper() or "ァ" <= name[0] <= "ー"
            always = name.lower() == name or name.lower() not in places
            if capital and always and len(name) >= _OFTEN and len(often) == 1 and often.total() >= _OFTEN:
                names.setdefault(next(iter(often)), name)
        return [replace(units[at], title=name) for at, name in sorted(names.items())]

    def _overviews(self) -> list[Asked]:
        found = [
            one for one in self._every
            if len(one.parts) in _PARTS and _is_askable(one.title) and self._is_there(one)
            and self._titles[one.title] == 1
        ]  # fmt: skip
        return [
            Asked(self._say("overview", one.document.doc_id, at, topic=one.title), one.parts)
            for at, one in enumerate(self._some("overview", found))
        ]

    def _exacts(self) -> list[Asked]:
        texts = {document.doc_id: document.text for document in self.documents}
        blocks = [
            Span(document.doc_id, block.start, block.end)
            for document in self.documents for block in _blocks(document) if block.heading is None
        ]  # fmt: skip
        strings = {found.strip("`") for text in texts.values() for found in _STRINGS.findall(text)}

        def places(string: str) -> tuple[Span, ...]:
            held = {doc_id for doc_id, text in texts.items() if string in text}
            return tuple(
                one for one in blocks if one.doc_id in held and string in texts[one.doc_id][one.start : one.end]
            )

        chosen = self._some("exact", sorted(strings), lambda string: 0 < len(places(string)) <= _PLACES)
        asked = enumerate((string, places(string)) for string in chosen)
        return [Asked(self._say("exact", spans[0].doc_id, at, string=string), spans) for at, (string, spans) in asked]

    # Values, ranges and names of metadata.

    def _filters(self) -> list[Asked]:
        fields = FieldDictionary.build(one.metadata for one in self.documents).fields
        ways = [self._some(f"filter {name}", self._wishes(info)) for name, info in sorted(fields.items())]
        mixed = [wish for turn in zip_longest(*ways) for wish in turn if wish is not None]
        made = []
        for at, (kind, words, gold) in enumerate(mixed[:MOST]):
            titled = [one for one in self.documents if one.doc_id in gold and _is_askable(_bare(one.title))]
            if kind == "range" or not titled or at % 2 == 0:
                made.append(Asked(self._say(kind, next(iter(gold)), at, **words), (), gold))
            else:
                about = self._chance(f"topic {at}").choice(titled)
                asked = self._say("value_topic", about.doc_id, at, topic=_bare(about.title), **words)
                made.append(Asked(asked, (), {**gold, about.doc_id: 2}))
        return made

    def _wishes(self, info: FieldInfo) -> list[Wish]:
        field = " ".join(re.split(r"[_\W]+", info.name)).strip()
        held = {one.doc_id: list(elements(one.metadata.get(info.name))) for one in self.documents}
        wishes: list[Wish] = []
        if info.kind is FieldKind.KEYWORD:
            holders: dict[str, dict[str, int]] = {}
            for doc_id, value in ((doc_id, value) for doc_id, values in held.items() for value in values):
                if isinstance(value, str):
                    holders.setdefault(_family(value) if info.person else value, {})[doc_id] = 1
            for text, gold in sorted(holders.items()):
                if len(text) <= _LONGEST and len(text.split()) <= _SHORT and any(map(str.isalnum, text)):
                    wishes.append(Wish("person" if info.person else "value", {"field": field, "value": text}, gold))
        elif info.kind in {FieldKind.NUMBER, FieldKind.DATE}:
            numbers = {doc_id: [*map(_number, values)] for doc_id, values in held.items()}
            known = sorted({one for values in numbers.values() for one in values if one is not None})
            for low, high in zip(known, known[max(1, len(known) // 5) :], strict=False):
                inside = (
                    doc_id for doc_id, values in numbers.items()
                    if any(one is not None and low <= one <= high for one in values)
                )  # fmt: skip
                words = {"field": field, "low": _written(low), "high": _written(high)}
                wishes.append(Wish("range", words, dict.fromkeys(inside, 1)))
        fit = [wish for wish in wishes if 0 < 2 * len(wish.gold) <= len(held)]
        return [wish for wish in fit if len(wish.gold) > 1] or fit


def _number(value: object) -> float | None:
    if isinstance(value, str):
        moment = parse_moment(value)
        return float(moment[0].year) if moment else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _written(number: float) -> str:
    return str(int(number)) if number.is_integer() else f"{number:g}"


def _family(name: str) -> str:
    """Return the family name of "Perlis, A. J."; of a name in another form all of it."""
    return name.partition(",")[0].strip()


def _record(document: SourceDocument) -> Part:
    span = _trimmed(document, 0, len(document.text))
    return Part(document=document, span=span, title=_bare(document.title))


def _names_more(document: SourceDocument) -> bool:
    """Tell whether something is left of a document without its title."""
    return len(document.text.replace(document.title, "").strip()) >= _MIN_BODY


def _of_parts(text: str, spans: Sequence[Span], documents: Sequence[SourceDocument]) -> Asked:
    whole = all(_length(span) == len(one.text.strip()) for span, one in zip(spans, documents, strict=True))
    return Asked(text, (), {span.doc_id: 1 for span in spans}) if whole else Asked(text, tuple(spans))


def _length(span: Span) -> int:
    return span.end - span.start


def _are_siblings(one: Part, other: Part) -> bool:
    same = (one.document.doc_id, one.above, one.level) == (other.document.doc_id, other.above, other.level)
    return (same or not one.level + other.level) and one.title.casefold() != other.title.casefold()


def _bare(title: str) -> str:
    """Return the title of a document without its number, and without what only names a file."""
    label = _LABEL.match(title)
    plain = (title[label.end() :] if label else title).strip()
    return "" if PurePath(plain).suffix and " " not in plain else plain


def _is_askable(title: str) -> bool:
    letters = sum(map(str.isalpha, title)) * (3 if _NARROW.search(title) else 1)
    return letters >= _TITLE.start and len(title) < _TITLE.stop


def _is_name(title: str) -> bool:
    return _is_askable(title * 2) and not re.search(r"[?？!.:;…]", title)


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _pattern(title: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(map(re.escape, title.split())) or r"(?!)", re.IGNORECASE)


def _blank(found: re.Match[str]) -> str:
    """Return as many characters that say nothing; line ends stay, so that the lines below do."""
    return "…" + "".join(char if char == "\n" else " " for char in found[0][1:])
