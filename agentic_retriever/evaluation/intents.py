"""Questions of every intent, made of a corpus; headings and titles that are asked are blanked, so offsets stay."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, zip_longest
from pathlib import PurePath
from typing import Final, TypeVar

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import Dataset, LabelledQuery
from agentic_retriever.evaluation.measures import Span
from agentic_retriever.filters import elements, parse_moment
from agentic_retriever.indices.fields import FieldDictionary, FieldInfo, FieldKind
from agentic_retriever.ingestion import SourceDocument
from agentic_retriever.ingestion.documents import parse_front_matter
from agentic_retriever.ingestion.structure import Block, scan_blocks
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.text.language_files import section
from agentic_retriever.text.scripts import UNDETERMINED
from agentic_retriever.text.sentences import central_sentences

MOST: Final = 30  # questions of one intent
WHY_NOT: Final = {  # of every intent, when none of its questions can be made
    "lookup": "no heading, title or sentence is its own, with text beside it",
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
_EXAMINED: Final = 20_000  # characters of a document in which its most central sentence is looked for
_PLACES: Final = 3  # where a title or an exact string may stand
_LONGEST: Final = 60  # characters of a value
_TITLE: Final = range(8, 161)  # characters of what is asked
_OFTEN, _SHORT = 3, 5  # times that a name stands in its section; words of a short title
_NARROW: Final = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # whose characters say more
_LABEL: Final = re.compile(  # "4.2 ", "4.2", "7. ", "Chapter 13. ", "Part IV - "
    r"(?P<number>\d{1,3}(?:\.\d{1,3})+|\d{1,3}(?=[.:)]|$))(?:[.:)]?\s+|[.:)]?$)"
    r"|\w+\s+(?:[\d.]+|[IVXLC]+)(?:[.:)]\s+|\s+[–—-]\s+)|第\s*\w{1,4}\s*[章节節条條部]\s*"
)
_STRINGS: Final = re.compile(
    r"(?<![\w-])--[A-Za-z][\w-]{2,30}|`[^`\n]{3,40}`|[\"“«„「][^\"”»“」\n]{8,60}[\"”»“」]|\b[A-Za-z]\w*_\w+"
    r"|(?<![\w./-])(?=[\w-]*[A-Z])(?=[\w-]*\d)[A-Za-z0-9][\w-]{3,24}(?![\w-])|(?<!\S)/[a-z]\w+(?:/[\w.-]*\w)+"
)
_NAMES: Final = re.compile(r"[^\W\d_]\w*(?:[-+.]\w+)*|[ァ-ヶー]{3,}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A section, or a whole document that has none."""

    document: SourceDocument
    span: Span  # with the parts below it, without its heading
    title: str  # without its number
    heading: tuple[int, int] = (0, 0)
    number: str = ""
    article: str = ""
    level: int = 0
    above: int = -1  # place of the part that it lies in
    parts: tuple[Span, ...] = ()  # what it consists of, its own text included


def parts_of(document: SourceDocument) -> list[Part]:
    """Divide a document along its headings."""
    found: list[Part] = []
    heads = [(block, block.heading) for block in _blocks(document) if block.heading is not None]
    inside: list[int] = []
    for at, (block, heading) in enumerate(heads):
        later = (other.start for other, one in heads[at + 1 :] if one.level <= heading.level)
        end, begin = next(later, len(document.text)), block.start if heading.inline else block.end
        while inside and found[inside[-1]].level >= heading.level:
            inside.pop()
        label = _LABEL.match(heading.title)
        part = Part(
            document=document, span=_trimmed(document, begin, end), title=_without_label(heading.title),
            heading=(block.start, begin), number=heading.number or (label and label["number"]) or "",
            article=heading.article, level=heading.level, above=inside[-1] if inside else -1,
        )  # fmt: skip
        found.append(part)
        inside.append(at)
    below: dict[int, list[Part]] = {}
    for part in found:
        below.setdefault(part.above, []).append(part)
    return [replace(part, parts=_divided(part, below.get(at, ()))) for at, part in enumerate(found)]


def _divided(part: Part, below: Sequence[Part]) -> tuple[Span, ...]:
    if not below:
        return ()
    bounds = [(part.span.start, below[0].heading[0]), *((one.heading[0], one.span.end) for one in below)]
    spans = (_trimmed(part.document, *ends) for ends in bounds)
    return tuple(span for span in spans if _length(span) >= _MIN_BODY)


def _blocks(document: SourceDocument) -> list[Block]:
    front = parse_front_matter(document.text) if document.kind == "md" else None
    return scan_blocks(document.text, start=front.end if front else 0)


def _trimmed(document: SourceDocument, start: int, end: int) -> Span:
    text = document.text[start:end]
    return Span(document.doc_id, start + len(text) - len(text.lstrip()), start + max(len(text.rstrip()), 0))


def intent_dataset(source: Dataset, *, seed: int = 0) -> Dataset:
    """Make questions of every intent of the documents of a data set; which could not be made stands in its notes."""
    if not source.documents:
        raise EvaluationError(
            f"{source.path} holds no documents to make questions of; name a folder of documents, a BEIR folder, a "
            "folder with docs/ and questions.jsonl, or an index of the data directory"
        )
    bed = _Bed(source, seed)
    made = bed.make()
    lacking = [f"{source.name}: no {intent} question: {WHY_NOT[intent]}" for intent in WHY_NOT if not made[intent]]
    queries = tuple(
        replace(one, query_id=f"{intent}-{at:02d}", intent=intent)
        for intent in WHY_NOT
        for at, one in enumerate(made[intent], start=1)
    )
    if not queries:
        raise EvaluationError(f"no question can be made of {source.path}: " + "; ".join(lacking))
    counts = ", ".join(f"{intent} {len(asked)}" for intent, asked in made.items() if asked)
    note = f"the questions of {source.name} were made of its own documents ({counts}); what they ask was taken out"
    return replace(source, documents=tuple(bed.documents), queries=queries, notes=(note, *lacking))


class _Bed:
    """Makes the questions of one corpus; what is asked is taken out of ``documents`` as it goes."""

    def __init__(self, source: Dataset, seed: int) -> None:
        self._source, self._seed = source, seed
        self.documents = sorted(source.documents, key=lambda one: one.doc_id)
        self._texts = {one.doc_id: one.text for one in self.documents}  # as they were
        self._parts, self._records = [], list[Part]()  # sections, and documents without any
        for one in self.documents:
            found = parts_of(one)
            self._parts += found
            if not found and len(one.text.strip()) >= _MIN_BODY:
                self._records.append(Part(document=one, span=_trimmed(one, 0, len(one.text)), title=_name_of(one)))
        self._leaves = [part for part in self._parts if not part.parts and _length(part.span) >= _MIN_BODY]
        self._titles = Counter(_flat(part.title) for part in self._parts)
        self._names = Counter(map(_name_of, self.documents))
        self._whole = "\n".join(_flat(f"{one.title}\n{one.text}") for one in self.documents)
        self._taken: set[str] = set()  # titles
        named = [one for one in self.documents if _is_askable(_name_of(one))]
        hidden = self._chance("documents").sample(named, len(named) // 2)  # for "document"
        self._hidden = {one.doc_id for one in hidden}

    def make(self) -> dict[str, list[LabelledQuery]]:
        people = [one for one in self._source.queries if not one.pseudo]
        lookups = self._some("people", people) if people else self._lookups()
        return {
            "lookup": lookups, "document": self._documents(), "two-part": list(self._two_parts(lookups)),
            "reference": self._references(), "comparison": self._comparisons(), "overview": self._overviews(),
            "filter": self._filters(), "exact": self._exacts(),
        }  # fmt: skip

    def _chance(self, what: str) -> random.Random:
        return random.Random(f"{self._seed} {what}")  # noqa: S311 - a sample, no secret

    def _some(self, what: str, found: Iterable[T], fits: Callable[[T], object] = lambda _: True) -> list[T]:
        every = list(found)
        self._chance(what).shuffle(every)
        return list(islice(filter(fits, every), MOST))

    def _say(self, kind: str, doc_id: str, at: int, **words: str) -> str:
        """Word a question in the language of a document, the wordings in turn."""
        tables = section("intents")
        ways = tables.get(detect_language(self._texts[doc_id]), tables[UNDETERMINED])[kind]
        return str(ways[at % len(ways)]).format(**words)

    def _ask(self, text: str, spans: Iterable[Span] = (), documents: Mapping[str, int] | None = None) -> LabelledQuery:
        """Make a question that wants spans, or documents."""
        wanted = tuple(spans)
        relevance = documents or {span.name: 1 for span in wanted}
        return LabelledQuery(
            query_id="", text=text, index=self._source.name, relevance=relevance, spans=wanted, pseudo=True
        )

    def _ask_parts(self, text: str, parts: Sequence[Part]) -> LabelledQuery:
        if all(part.level for part in parts):
            return self._ask(text, [part.span for part in parts])
        return self._ask(text, documents=dict.fromkeys((part.span.doc_id for part in parts), 1))

    # Titles that are asked are taken out.

    def _lookups(self) -> list[LabelledQuery]:
        bare = self._some("sentences", (part for part in self._records if not part.title))
        sayings = [replace(part, title=_central_sentence(part.document.text)) for part in bare]
        every = [part for part in self._leaves if part.above >= 0 or part.title != _name_of(part.document)]
        every += [
            part for part in (*self._records, *sayings)
            if part.span.doc_id not in self._hidden and _length(part.span) >= _MIN_BODY + len(part.title)
        ]  # fmt: skip
        chosen = self._some("lookup", every, self._is_own)
        self._take_out(part.title for part in chosen)
        made = []
        for at, part in enumerate(chosen):
            title = " ".join(part.title.split())
            asks = part in sayings or title.endswith(("?", "？"))
            question = title if asks else self._say("lookup", part.span.doc_id, at, topic=title)
            made.append(self._ask_parts(question, [part]))
        return made

    def _is_rare(self, title: str) -> bool:
        return _is_askable(title) and self._whole.count(_flat(title)) <= _PLACES

    def _is_own(self, part: Part) -> bool:
        """Tell whether a title can be asked: nothing else is called so, and it can be taken out of all texts."""
        title, heading = _flat(part.title), part.document.text[slice(*part.heading)]
        if not self._is_rare(part.title) or (heading and not _pattern(part.title).search(heading)):
            return False
        held = (str(value) for one in self.documents for value in one.metadata.values())
        alike = sum(often for other, often in self._titles.items() if title in other)
        return alike <= 1 and not any(title in _flat(value) for value in held)

    def _take_out(self, titles: Iterable[str]) -> None:
        patterns = [_pattern(title) for title in titles]
        self._taken |= {pattern.pattern for pattern in patterns}
        for at, document in enumerate(self.documents):
            text, title = document.text, document.title
            for pattern in patterns:
                text, title = pattern.sub(_blank, text), pattern.sub("", title)
            self.documents[at] = replace(document, text=text, title=title.strip(" ."))

    def _documents(self) -> list[LabelledQuery]:
        every = [one for one in self.documents if one.doc_id in self._hidden and self._names[_name_of(one)] == 1]
        chosen = self._some("document", every, lambda one: self._is_rare(_name_of(one)))
        self._take_out(map(_name_of, chosen))
        return [
            self._ask(self._say("document", one.doc_id, at, topic=_name_of(one)), documents={one.doc_id: 1})
            for at, one in enumerate(chosen)
        ]

    def _two_parts(self, lookups: Sequence[LabelledQuery]) -> Iterator[LabelledQuery]:
        narrow = [one for one in lookups if len(one.relevance) <= _PLACES]
        for at, (first, second) in enumerate(pairwise([*narrow, *narrow[: len(narrow) > 2]])):
            meet = any(one.is_found_by(*other) for one in first.spans for other in second.spans)
            if not meet and not first.relevance.keys() & second.relevance.keys():
                doc_id = first.spans[0].doc_id if first.spans else next(iter(first.relevance))
                then = second.text[:1].lower() + second.text[1:] if second.text[1:2].islower() else second.text
                text = self._say("two_part", doc_id, at, first=first.text, second=second.text, then=then)
                both = dict.fromkeys([*first.relevance, *second.relevance], 1)
                yield replace(first, text=text, relevance=both, spans=(*first.spans, *second.spans))

    # What stays in the text.

    def _references(self) -> list[LabelledQuery]:
        numbered = [one for one in self._parts if (one.article or one.number) and _length(one.span) >= _MIN_BODY]
        count = Counter((one.article, one.number) for one in numbered)
        held = Counter((one.span.doc_id, one.article, one.number) for one in numbered)

        def is_clear(one: Part) -> bool:
            name = _name_of(one.document)
            known = _is_askable(name) and self._names[name] == 1 and one.span.doc_id not in self._hidden
            alone = count[one.article, one.number] == 1
            return held[one.span.doc_id, one.article, one.number] == 1 and (alone or known)

        made = []
        for at, one in enumerate(self._some("reference", numbered, is_clear)):
            kind = f"{'article' if one.article else 'section'}{'' if count[one.article, one.number] == 1 else '_in'}"
            words = {"number": one.article or one.number, "document": _name_of(one.document)}
            made.append(self._ask(self._say(kind, one.span.doc_id, at, **words), [one.span]))
        return made

    def _comparisons(self) -> list[LabelledQuery]:
        short = [
            one for one in (*self._parts, *self._records)
            if len(one.title.split()) <= _SHORT and _is_askable(one.title * 2) and self._is_there(one)
            and not re.search(r"[?？!.:;…]", one.title) and _length(one.span) >= _MIN_BODY
        ]  # fmt: skip
        pairs = [(one, other) for one, other in pairwise(short) if _are_siblings(one, other)]
        pairs += list(pairwise(self._named())) if len(pairs) < MOST else []
        made = []
        for at, (one, other) in enumerate(self._some("comparison", pairs)):
            text = self._say("comparison", one.span.doc_id, at, first=one.title, second=other.title)
            made.append(self._ask_parts(text, [one, other]))
        return made

    def _named(self) -> list[Part]:
        """Return sections by a name that stands several times in each, always with a capital, and nowhere else."""
        places: dict[str, Counter[int]] = {}
        units, names = [*self._leaves, *self._records], dict[int, str]()
        texts = {document.doc_id: document.text for document in self.documents}
        for at, part in enumerate(units):
            for name in _NAMES.findall(texts[part.span.doc_id][part.span.start : part.span.end]):
                places.setdefault(name, Counter())[at] += 1
        for name, often in sorted(places.items()):
            small = name.lower()
            capital = (name[0].isupper() and small not in places) or "ァ" <= name[0] <= "ー"
            if capital and len(name) >= _OFTEN and len(often) == 1 and often.total() >= _OFTEN:
                names.setdefault(next(iter(often)), name)
        return [replace(units[at], title=name) for at, name in sorted(names.items())]

    def _is_there(self, part: Part) -> bool:
        return _pattern(part.title).pattern not in self._taken

    def _overviews(self) -> list[LabelledQuery]:
        found = [
            one for one in self._parts
            if len(one.parts) in _PARTS and _is_askable(one.title) and self._titles[_flat(one.title)] == 1
            and self._is_there(one)
        ]  # fmt: skip
        return [
            self._ask(self._say("overview", one.span.doc_id, at, topic=one.title), one.parts)
            for at, one in enumerate(self._some("overview", found))
        ]

    def _exacts(self) -> list[LabelledQuery]:
        texts = {document.doc_id: document.text for document in self.documents}
        blocks = [
            Span(document.doc_id, block.start, block.end)
            for document in self.documents for block in _blocks(document) if block.heading is None
        ]  # fmt: skip
        strings = {found.strip("`") for text in texts.values() for found in _STRINGS.findall(text)}

        def places(string: str) -> list[Span]:
            held = {doc_id for doc_id, text in texts.items() if string in text}
            return [one for one in blocks if one.doc_id in held and string in texts[one.doc_id][one.start : one.end]]

        chosen = self._some("exact", sorted(strings), lambda string: 0 < len(places(string)) <= _PLACES)
        asked = enumerate((string, places(string)) for string in chosen)
        return [
            self._ask(self._say("exact", spans[0].doc_id, at, string=string), spans) for at, (string, spans) in asked
        ]

    # Values, ranges and names of metadata; gold is what satisfies them, and in it twice what the topic was taken from.

    def _filters(self) -> list[LabelledQuery]:
        fields = FieldDictionary.build(one.metadata for one in self.documents).fields
        ways = [self._some(f"filter {name}", self._wishes(info)) for name, info in sorted(fields.items())]
        made = []
        for at, wish in enumerate(islice(filter(None, (one for turn in zip_longest(*ways) for one in turn)), MOST)):
            kind, words, gold = wish
            about = [one for one in self.documents if one.doc_id in gold and _is_askable(_name_of(one))]
            if kind != "range" and about and at % 2:
                chosen = self._chance(f"topic {at}").choice(about)
                kind, words, gold = "value_topic", {**words, "topic": _name_of(chosen)}, {**gold, chosen.doc_id: 2}
            made.append(self._ask(self._say(kind, next(iter(gold)), at, **words), documents=gold))
        return made

    def _wishes(self, info: FieldInfo) -> list[tuple[str, dict[str, str], dict[str, int]]]:
        """Return what can be wanted of a field: the kind of question, its words, and the documents that satisfy it."""
        field = " ".join(re.split(r"[_\W]+", info.name)).strip()
        held = [(one.doc_id, value) for one in self.documents for value in elements(one.metadata.get(info.name))]
        wishes: list[tuple[str, dict[str, str], dict[str, int]]] = []
        if info.kind is FieldKind.KEYWORD:
            holders: dict[str, dict[str, int]] = {}
            for doc_id, value in held:
                if isinstance(value, str):  # of "Perlis, A. J." the family name
                    holders.setdefault(value.partition(",")[0].strip() if info.person else value, {})[doc_id] = 1
            for text, gold in sorted(holders.items()):
                if len(text) <= _LONGEST and len(text.split()) <= _SHORT and any(map(str.isalnum, text)):
                    wishes.append(("person" if info.person else "value", {"field": field, "value": text}, gold))
        elif info.kind in {FieldKind.NUMBER, FieldKind.DATE}:
            numbers = [(doc_id, number) for doc_id, value in held if (number := _number(value)) is not None]
            known = sorted({number for _, number in numbers})
            for low, high in zip(known, known[max(1, len(known) // 5) :], strict=False):
                words = {"field": field, "low": f"{low:.15g}", "high": f"{high:.15g}"}
                wishes.append(("range", words, {doc_id: 1 for doc_id, number in numbers if low <= number <= high}))
        fit = [wish for wish in wishes if 2 * len(wish[2]) <= len(self.documents)]
        return [wish for wish in fit if len(wish[2]) > 1] or fit


def _number(value: object) -> float | None:
    if isinstance(value, str):
        moment = parse_moment(value)
        return float(moment[0].year) if moment else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _length(span: Span) -> int:
    return span.end - span.start


def _are_siblings(one: Part, other: Part) -> bool:
    """Tell whether two parts stand side by side: two sections of one, or two documents without sections."""
    same = (one.span.doc_id, one.above, one.level) == (other.span.doc_id, other.above, other.level)
    return (same or not one.level + other.level) and _flat(one.title) != _flat(other.title)


def _without_label(title: str) -> str:
    label = _LABEL.match(title)
    return (title[label.end() :] if label else title).strip().rstrip(" .,;:")


def _name_of(document: SourceDocument) -> str:
    """Return the title of a document without its number; the name of a file is none."""
    name = _without_label(document.title)
    return "" if PurePath(name).suffix and " " not in name else name


def _central_sentence(text: str) -> str:
    """Return the most central sentence of a text (G. Erkan and D. Radev, "LexRank", JAIR 22, 2004)."""
    chosen = central_sentences([text[:_EXAMINED]], tokenizer=Tokenizer(detect_language(text)), room=1)
    return chosen[0] if chosen else ""


def _flat(text: str) -> str:
    return " ".join(text.split()).casefold()


def _is_askable(title: str) -> bool:
    letters = sum(map(str.isalpha, title)) * (3 if _NARROW.search(title) else 1)
    return letters >= _TITLE.start and len(title) < _TITLE.stop


def _pattern(title: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(map(re.escape, title.split())) or r"(?!)", re.IGNORECASE)


def _blank(found: re.Match[str]) -> str:
    """Return as many characters that say nothing; line ends stay, so that the lines below do."""
    return "…" + re.sub(r"[^\n]", " ", found[0][1:])
