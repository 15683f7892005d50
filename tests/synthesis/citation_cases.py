"""Cases for the check of citations; run it to print the measured table of docs/answers.md."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from answer_nodes import make_node

from agentic_retriever.sample import DATA
from agentic_retriever.synthesis import CitationChecker, assemble
from agentic_retriever.text import split_sentences
from agentic_retriever.text.language_files import section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentic_retriever.synthesis import CitedText, ContextPassage
    from agentic_retriever.text import Sentence


# Written by hand, by language: PARAPHRASES have words of the source sentence, and the same otherwise said; FREE, freely
# worded, words of it, a true sentence, and a false one that is nearly the same. INVENTED is what the sample corpus does
# not say, in its manner; ADDED are clauses for behind a true sentence; OTHER_NAMES take the place of its names.
_DATA: Final = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

PARAPHRASES, FREE, INVENTED, ADDED, OTHER_NAMES = (
    _DATA[key] for key in ("PARAPHRASES", "FREE", "INVENTED", "ADDED", "OTHER_NAMES")
)

_MONTHS = {code: [names[0] for names in section("dates")[code]["months"].values()] for code in ("en", "es", "th")}
_MONTHS["en"] = [name.capitalize() for name in _MONTHS["en"]]
_EVERY_MONTH = frozenset(month for months in _MONTHS.values() for month in months)


def other_form(sentence: str, language: str) -> str | None:
    """The same with dates, digits or separators written otherwise."""
    changed = iso_date(sentence, language) or sentence
    if language == "th" and changed == sentence:
        return sentence.translate(str.maketrans("0123456789", "๐๑๒๓๔๕๖๗๘๙")) if re.search(r"\d", sentence) else None
    if language != "es":  # where a comma stands before decimals
        changed = re.sub(r"(?<=\d),(?=\d{3}\b)", "\u202f", changed)
    changed = re.sub(r"\bper ?cent\b|\bpor ciento\b", "%", changed)
    if changed == sentence and language != "th":
        changed = re.sub(r"(?<=\d) %", " percent" if language == "en" else " por ciento", changed)
    return changed if changed != sentence else None


def iso_date(sentence: str, language: str) -> str | None:
    months = _MONTHS[language]
    found = re.search(rf"(\d{{1,2}}) (?:de )?({'|'.join(months)}) (?:de )?(\d{{4}})", sentence)
    if not found:
        return None
    year = int(found[3]) - (543 if language == "th" else 0)
    iso = f"{year}-{months.index(found[2]) + 1:02}-{int(found[1]):02}"
    return sentence[: found.start()] + iso + sentence[found.end() :]


def changed_date(sentence: str, language: str) -> str | None:
    """Another month, day or year, in turn."""
    months = _MONTHS[language]
    found = re.search(rf"(\d{{1,2}}) (?:de )?({'|'.join(months)})(?: (?:de )?(\d{{4}}))?", sentence)
    if not found:
        found = re.search(rf"()\b({'|'.join(months)})\b()", sentence)
        if not found or found[2] == "May":
            return None
    turn = len(sentence) % 3
    if turn == 1 and found[1]:
        start, end, new = found.start(1), found.end(1), str(int(found[1]) % 27 + 2)
    elif turn == 2 and found[3]:
        start, end, new = found.start(3), found.end(3), str(int(found[3]) + 3)
    else:
        start, end, new = found.start(2), found.end(2), months[(months.index(found[2]) + 4) % 12]
    return sentence[:start] + new + sentence[end:]


def swapped_name(sentence: str, language: str) -> str | None:
    names = OTHER_NAMES[language]
    name = names[len(sentence) % len(names)]
    if language == "th":
        found = re.search(r"(?:นางสาว|นาง|นาย)([\u0e00-\u0e7f]{3,12}(?: [\u0e00-\u0e7f]{4,})?)", sentence)
        people, places = names[:2], names[2:]
        if found:
            return sentence[: found.start(1)] + people[len(sentence) % 2] + sentence[found.end(1) :]
        found = re.search(r"จังหวัด([\u0e00-\u0e7f]{3,})", sentence)
        new = places[len(sentence) % 3]
        return sentence[: found.start(1)] + new + sentence[found.end(1) :] if found else None
    words = [
        w for w in re.finditer(r"(?<=[a-záéíóúñ,] )[A-ZÁÉ][\wáéíóúñ]+(?:-\d+)?", sentence) if w[0] not in _EVERY_MONTH
    ]
    if not words:
        return None
    word = words[len(sentence) % len(words)]
    code = {"en": "CTO", "es": "ZTO"}[language] if word[0].isupper() else name
    new = re.sub(r"\d+", lambda d: str(int(d[0]) + 6), word[0]) if re.search(r"\d", word[0]) else code
    return sentence[: word.start()] + new + sentence[word.end() :]


def flipped(sentence: str, language: str) -> str | None:
    rules = {
        "en": [(r" (?:must|may|can) (?!not|never|be)", r"\g<0>not "), (r" (is|are) not ", r" \1 "),
               (r" (?:is|are) (?!not|never)", r"\g<0>not "),
               (r" (?:must|may|can)(not)? (not |never )", lambda m: m[0].replace(m[2], "")), (r" never ", " always ")],
        "es": [(r" no ", " "), (r" (?=(?:puede|se|lleva|tiene|es|son|debe|resuelve|conserva)n? )", " no ")],
        "th": [("ไม่(?=ต้อง|ได้|มี|เคย|ใช่|ผูก)", ""),
               ("(?<!ไม่)(?=ต้อง|ได้รับ|มีสิทธิ|มีชื่อ|เป็นของ|เป็นเจ้าของ|ติดถนน)", "ไม่")],
    }[language]  # fmt: skip
    for pattern, new in rules[len(sentence) % 2 :] + rules[: len(sentence) % 2]:
        changed = re.sub(pattern, new, sentence, count=1)
        if changed != sentence:
            return changed
    return None


def changed_number(sentence: str) -> str | None:
    """One of the numbers, the first or the last in turn, made another one of the same form."""
    found = list(re.finditer(r"(?<![\w.,-])\d+(?:[.,]\d+)*(?![\w-])", sentence))
    if not found:
        return None
    number = found[len(sentence) % len(found)]
    digits = number[0]
    first = str(int(digits[0]) % 9 + 1)
    new = first + digits[1:] if len(digits) > 1 else str((int(digits) + 3) % 10 or 4)
    return sentence[: number.start()] + new + sentence[number.end() :]


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
        return "dev" if hashlib.sha256(self.origin.encode()).digest()[0] % 2 else "held"

    @property
    def passages(self) -> tuple[ContextPassage, ...]:
        """What the numbers of its markers stand for."""
        names = [(c, {"doc_id": c.doc, "node_id": f"{c.doc}:{c.start}"}) for c in self.chunks]
        nodes = [make_node(c.text, start=c.start, title=c.title, section=c.section, **ids) for c, ids in names]
        return assemble(nodes, max_chars=10**6)

    def checked(self) -> CitedText:
        return CitationChecker(self.passages, language=self.language).finish(self.answer)


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
            yield Case(self.language, "two passages", self.origin(first), f"{joined} [1][3]", given, True, (1, 3))

    def elsewhere(self) -> Iterator[Case]:
        """A sentence of a document that is not among the passages."""
        for sentence, at in self.sentences[::-1][:PER_KIND]:
            self.turn += 1
            given = tuple(self.others(at, 4))
            answer = f"{sentence} [{self.turn % 4 + 1}]"
            yield Case(self.language, "another document", self.origin(sentence), answer, given, False)

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
        plain = not re.match(r"[#>*-]|\d+[.)]|[a-z]\)", bare) and not set("|\n:") & set(bare)
        if plain and 35 <= len(bare) <= 240:
            found.append(s)
    return found


@dataclass
class Rates:
    """How often the check was right, by language and kind."""

    right: Counter[tuple[str, str]] = field(default_factory=Counter)
    all: Counter[tuple[str, str]] = field(default_factory=Counter)

    def counts(self, languages: tuple[str, ...]) -> tuple[int, int, int, int]:
        """True sentences accepted and rejected, false sentences rejected and accepted."""
        keep = [key for key in self.all if key[0] in languages]
        true = [key for key in keep if key[1] in TRUE_KINDS]
        false = [key for key in keep if key[1] in FALSE_KINDS]
        accepted, rejected = sum(self.right[key] for key in true), sum(self.right[key] for key in false)
        return accepted, sum(self.all[k] for k in true) - accepted, rejected, sum(self.all[k] for k in false) - rejected

    def of(self, languages: tuple[str, ...] = LANGUAGES) -> dict[str, float]:
        """Precision and recall, with accepting the true and with finding the false as the aim."""
        accepted, lost, rejected, missed = self.counts(languages)
        return {
            "supported precision": accepted / (accepted + missed), "supported recall": accepted / (accepted + lost),
            "unsupported precision": rejected / (rejected + lost), "unsupported recall": rejected / (rejected + missed),
        }  # fmt: skip


def measured(half: str) -> Rates:
    """Check all cases of one half, ``dev`` or ``held``."""
    rates = Rates()
    for case in cases():
        if case.half == half:
            checks = case.checked().checks
            supported = bool(checks) and all(check.supported for check in checks)
            rates.all[case.language, case.kind] += 1
            rates.right[case.language, case.kind] += supported == case.supported
    return rates


def table() -> str:
    """Both halves as Markdown."""
    dev, held = measured("dev"), measured("held")
    lines = ["| kind | should be | en | es | th | all held-out | dev |", "|---|---|---|---|---|---|---|"]
    for kind in (*TRUE_KINDS, *FALSE_KINDS):
        aim = "supported" if kind in TRUE_KINDS else "unsupported"
        cells = [f"{held.right[lang, kind]}/{held.all[lang, kind]}" for lang in LANGUAGES]
        cells += [
            f"{sum(r.right[lang, kind] for lang in LANGUAGES)}/{sum(r.all[lang, kind] for lang in LANGUAGES)}"
            for r in (held, dev)
        ]
        lines.append(f"| {kind} | {aim} | {' | '.join(cells)} |")
    lines += ["", "| held-out half | cases | " + " | ".join(held.of()) + " |", "|---|---|" + "---|" * 4]
    for name, languages in (*((lang, (lang,)) for lang in LANGUAGES), ("all", LANGUAGES)):
        shown = " | ".join(f"{value:.3f}" for value in held.of(languages).values())
        lines.append(f"| {name} | {sum(held.counts(languages))} | {shown} |")
    shown = " | ".join(f"{value:.3f}" for value in dev.of().values())
    lines.append(f"| (dev, all) | {sum(dev.counts(LANGUAGES))} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
