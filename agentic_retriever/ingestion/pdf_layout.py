"""Words at places on pages to Markdown: reading order, paragraphs, headings, tables, and where each page lies in it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby, pairwise
from statistics import median
from typing import Final, NamedTuple

from agentic_retriever.ingestion.documents import PageSpan, markdown_table
from agentic_retriever.text.language_files import listed
from agentic_retriever.text.scripts import UNSPACED
from agentic_retriever.text.sentences import goes_on_with_number

# What a page has: words and drawn lines. ``y`` grows downwards.


class Word(NamedTuple):
    text: str
    x0: float
    x1: float
    y: float  # of the baseline
    size: float
    bold: bool
    mono: bool
    spaced: bool  # whether white space stands before it
    order: int

    @property
    def middle(self) -> tuple[float, float]:
        return (self.x0 + self.x1) / 2, self.y - 0.3 * self.size


class Ruling(NamedTuple):
    """A drawn line: at ``at``, from ``start`` to ``end``, across or down."""

    at: float
    start: float
    end: float


@dataclass(slots=True)
class Sheet:
    """What of a page is written in one direction."""

    words: list[Word]
    across: list[Ruling]
    down: list[Ruling]
    top: float
    bottom: float


@dataclass(slots=True)
class Page:
    sheets: list[Sheet] = field(default_factory=list)
    recognised: str = ""
    scanned: bool = False
    problem: str = ""


class Layout(NamedTuple):
    text: str
    pages: tuple[PageSpan, ...]
    title: str  # the largest headings of the first page


def lay_out(pages: Sequence[Page], *, on_page: Callable[[int], None]) -> Layout:
    """Put pages together; ``on_page`` is called with the number of each, and may end it by raising."""
    blocks = _blocks(pages, on_page)
    text, spans = _Writer(blocks, len(pages)).write()
    return Layout(text, spans, _title(blocks))


# Words to lines and tables, in reading order.

GAP: Final = 0.17  # of the size: a wider one parts words
_MAX_RULINGS: Final = 500


@dataclass(slots=True)
class _Line:
    """Words on one baseline without a wide gap between them; or a table, which stands for its place."""

    words: list[Word]
    x0: float
    x1: float
    y: float
    size: float
    table: list[list[str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return _words_text(self.words)

    @property
    def bold(self) -> bool:
        words = [word for word in self.words if any(map(str.isalnum, word.text))]
        named = [word for word in words if word.bold or not word.mono]  # code within a heading is seldom bold
        return all(word.bold for word in named) and 2 * len(named) >= len(words)

    @property
    def mono(self) -> bool:
        return bool(self.words) and all(word.mono for word in self.words)


_RTL = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_LEADERS = re.compile(r"(?:[ ]?\.){4,}[ ]?")
_WIDE: Final = 1.0  # of the size: a wider gap parts columns and cells


def _words_text(words: Sequence[Word]) -> str:
    parts: list[str] = []
    for before, word in pairwise([None, *words]):
        if word is None:
            continue
        wide = before is not None and max(word.x0 - before.x1, before.x0 - word.x1) > GAP * max(word.size, before.size)
        unspaced = before is not None and UNSPACED.match(before.text[-1]) and UNSPACED.match(word.text[0])
        if before and (word.spaced or wide) and not (unspaced and not word.spaced):
            parts.append(" ")
        parts.append(word.text)
    return _LEADERS.sub(" ... ", "".join(parts)).strip()


def _lines(words: Sequence[Word]) -> list[_Line]:
    """Words by baseline, parted at wide gaps, from top to bottom."""
    rows: list[list[Word]] = []
    for word in sorted(words, key=lambda word: (word.y, word.x0)):
        if rows:
            base = max(rows[-1], key=lambda one: one.size)
            size = max(word.size, base.size)
            alike = min(word.size, base.size) > 0.85 * size
            # Two lines of a column are apart, though a heading of the other column stands between them.
            apart = not alike and any(word.y - one.y >= word.size and one.size > 0.85 * word.size for one in rows[-1])
            if not apart and abs(word.y - base.y) <= (0.25 if alike else 0.45) * size:
                rows[-1].append(word)
                continue
        rows.append([word])
    lines: list[_Line] = []
    for row in rows:
        row.sort(key=lambda word: word.x0)
        start = 0
        for at in range(1, len(row) + 1):
            here = row[start:at]
            if at == len(row) or row[at].x0 - max(word.x1 for word in here) > _WIDE * min(row[at].size, here[-1].size):
                lines.append(_line(here))
                start = at
    return lines


def _line(words: list[Word]) -> _Line:
    said = words[1:] if words[0].text.strip(".)").isdecimal() else []  # a step may have a larger number
    base = max(said or words, key=lambda word: (round(word.size, 1), len(word.text)))
    if 2 * len(_RTL.findall("".join(word.text for word in words))) > sum(len(word.text) for word in words):
        words = sorted(words, key=lambda word: word.order)  # PDFium has put them in order already
    return _Line(words, min(word.x0 for word in words), max(word.x1 for word in words), base.y, base.size)


def merged_rulings(rulings: list[Ruling]) -> list[Ruling]:
    """Join pieces of one line, and the two edges of a line that is drawn as a narrow box."""
    merged: list[Ruling] = []
    rulings.sort()
    while rulings:
        at = rulings[0].at
        near = [one for one in rulings if one.at - at <= 2.5]
        rulings = rulings[len(near) :]
        first = len(merged)
        for one in sorted(near, key=lambda one: one.start):
            if len(merged) > first and one.start <= merged[-1].end + 3:
                merged[-1] = merged[-1]._replace(end=max(merged[-1].end, one.end))
            else:
                merged.append(one._replace(at=at))
    return merged if len(merged) <= _MAX_RULINGS else []


def _row_groups(lines: Iterable[_Line]) -> list[list[_Line]]:
    """Lines side by side, from left to right."""
    rows: list[list[_Line]] = []
    for line in sorted(lines, key=lambda line: (line.y, line.x0)):
        if rows and not line.table and not rows[-1][0].table and line.y - rows[-1][0].y <= 0.25 * line.size:
            rows[-1].append(line)
        else:
            rows.append([line])
    return [sorted(row, key=lambda line: line.x0) for row in rows]


_ENOUGH_FIGURES: Final = 3
_FIGURE = re.compile(r"(?=\D*\d)[\s\d.,:%$€£()/+–-]+")
_COLUMN_LINES: Final = 4
_COLUMN_EMS: Final = 10
_UNEVEN_LINES: Final = 20  # for columns that hold tables themselves, as a reference card has them


def _columns(lines: list[_Line], depth: int = 0) -> list[list[_Line]]:
    """Part the lines of a page into columns of running text, in reading order."""
    gutter = _gutter(lines) if depth < 3 else None
    if gutter is None:
        return [lines]
    zones: list[list[_Line]] = []
    left: list[_Line] = []
    right: list[_Line] = []
    across: list[_Line] = []
    for line in [*sorted(lines, key=lambda line: line.y), None]:
        crossing = line is None or line.x0 < gutter < line.x1
        if crossing and (left or right):
            zones += [zone for side in (left, right) if side for zone in _columns(side, depth + 1)]
            left, right = [], []
        elif not crossing and across:
            zones.append(across)
            across = []
        if line is not None:
            (across if crossing else left if line.x1 <= gutter else right).append(line)
    return [*zones, across] if across else zones


def _gutter(lines: Sequence[_Line]) -> float | None:
    """Find the white stripe between two columns: few lines cross it, and on both sides most lines fill their column."""
    starts = Counter(round(line.x0 / 3) for line in lines)
    best: tuple[int, float] | None = None
    for start, count in starts.items():
        x = 3 * start - 2.5
        left = [line for line in lines if line.x1 <= x]
        right = [line for line in lines if line.x0 >= x]
        crossing = len(lines) - len(left) - len(right)
        if count < 2 or 2 * crossing > len(lines):
            continue
        if not (_is_running(left) and _is_running(right)) and (20 * crossing > len(lines) or _in_rows(left, right)):
            continue
        top, bottom = min(line.y for line in left), max(line.y for line in left)
        beside = sum(top - line.size <= line.y <= bottom + line.size for line in right)
        if 2 * beside >= len(right) and (best is None or crossing < best[0]):
            best = crossing, x
    return best[1] if best else None


def _in_rows(left: Sequence[_Line], right: Sequence[_Line]) -> bool:
    """Whether lines stand beside each other as the cells of a table do; those of two columns have their own heights."""
    heights = {round(line.y) for line in left}, {round(line.y) for line in right}
    extents = (sum(2 * len(line.table) or 1 for line in side) for side in (left, right))
    return 2 * len(heights[0] & heights[1]) > min(map(len, heights)) or min(extents) < _UNEVEN_LINES


def _is_running(lines: Sequence[_Line]) -> bool:
    if len(lines) < _COLUMN_LINES:
        return False
    start, end = min(line.x0 for line in lines), max(line.x1 for line in lines)
    full = sum(line.x1 - line.x0 > 0.6 * (end - start) for line in lines)
    return end - start >= _COLUMN_EMS * median(line.size for line in lines) and 2 * full >= len(lines)


def _ruled_tables(sheet: Sheet) -> tuple[list[_Line], list[Word]]:
    """Tables between drawn lines, and the words that are in none."""
    tables: list[_Line] = []
    words = sheet.words
    for across, down in _grids(sheet.across, sheet.down):
        ends, more = _undrawn(across, down)
        xs, ys = _places([*(one.at for one in down), *ends]), _places([*(one.at for one in across), *more])
        if len(xs) < 3 or len(ys) < 3:
            continue
        inside = [word for word in words if xs[0] < word.middle[0] < xs[-1] and ys[0] - 2 < word.middle[1] < ys[-1] + 2]
        rows = _cells(inside, xs, ys, across, down)
        table = _filled_columns(rows) if len(rows) > 1 else [[""]]
        filled = sum(bool(cell) for row in rows for cell in row)
        if filled >= 4 and 4 * filled >= len(rows) * len(rows[0]) and len(table[0]) > 1:  # one column is text in a box
            taken = set(inside)
            words = [word for word in words if word not in taken]
            tables.append(_Line([], xs[0], xs[-1], inside[0].y, inside[0].size, table))
    return tables, words


def _grids(across: list[Ruling], down: list[Ruling]) -> Iterator[tuple[list[Ruling], list[Ruling]]]:
    """Group the lines that meet."""
    waiting, loose = list(down), list(across)
    while waiting:
        verticals, horizontals = [waiting.pop()], list[Ruling]()
        while True:
            met = [one for one in loose if any(_meet(one, other) for other in verticals)]
            loose = [one for one in loose if one not in met]
            horizontals += met
            more = [one for one in waiting if any(_meet(other, one) for other in met)]
            waiting = [one for one in waiting if one not in more]
            verticals += more
            if not more:
                break
        yield horizontals, verticals


def _meet(across: Ruling, down: Ruling) -> bool:
    return across.start - 3 <= down.at <= across.end + 3 and down.start - 3 <= across.at <= down.end + 3


def _undrawn(across: list[Ruling], down: list[Ruling]) -> list[tuple[float, ...]]:
    """The frame that is not drawn of a table whose rows are parted by lines that begin and end alike: its sides."""
    starts, ends = {round(one.start / 3) for one in across}, {round(one.end / 3) for one in across}
    if len(across) < 3 or max(starts) - min(starts) > 1 or max(ends) - min(ends) > 1:
        return [(), ()]
    return [(min(one.start for one in lines), max(one.end for one in lines)) for lines in (across, down)]


def _places(values: Iterable[float]) -> list[float]:
    places: list[float] = []
    for value in sorted(values):
        if not places or value - places[-1] > 3:
            places.append(value)
    return places


def _cells(
    words: Sequence[Word], xs: list[float], ys: list[float], across: list[Ruling], down: list[Ruling]
) -> list[list[str]]:
    """Texts of the cells; one that reaches over several places stands in the first of them."""
    found: dict[tuple[int, int], list[Word]] = {}
    for word in words:
        x, y = word.middle
        row = max(0, sum(place <= y for place in ys) - 1)
        column = max(0, sum(place <= x for place in xs) - 1)
        while column and not _drawn(down, xs[column], y):
            column -= 1
        while row and not _drawn(across, ys[row], x):
            row -= 1
        found.setdefault((min(row, len(ys) - 2), min(column, len(xs) - 2)), []).append(word)
    rows = [[_lines(found.get((row, column), ())) for column in range(len(xs) - 1)] for row in range(len(ys) - 1)]
    return [cells for row in rows if any(row) for cells in _rows_by_figures(row)]


def _rows_by_figures(row: list[list[_Line]]) -> list[list[str]]:
    """The texts of a row; as several rows, where a column of figures says that no lines were drawn between them."""
    figures = max((lines for lines in row if all(_FIGURE.fullmatch(one.text) for one in lines)), key=len, default=[])
    tops = [line.y - 0.4 * line.size for line in figures] if len(figures) >= _ENOUGH_FIGURES else []
    rows = [["" for _ in row] for _ in tops or [0]]
    for column, lines in enumerate(row):
        for line in lines:
            cells = rows[max(0, sum(top <= line.y for top in tops) - 1)]
            cells[column] = f"{cells[column]}\n{line.text}".strip()
    return [cells for cells in rows if any(cells)]


def _drawn(rulings: Iterable[Ruling], at: float, place: float) -> bool:
    return any(abs(one.at - at) <= 3 and one.start - 3 <= place <= one.end + 3 for one in rulings)


def _filled_columns(rows: list[list[str]]) -> list[list[str]]:
    kept = [at for at in range(len(rows[0])) if any(row[at] for row in rows)]
    return [[row[at] for at in kept] for row in rows]


def _aligned_tables(rows: list[list[_Line]], *, code: bool) -> Iterator[list[list[_Line]] | _Line]:
    """Yield runs of rows as they are, and as one line with a table those whose cells stand below each other."""
    plain: list[list[_Line]] = []
    run: list[list[_Line]] = []
    for row in [*rows, []]:
        words = row[0].words if row else []
        several = len(row) > 1 and not any("..." in line.text for line in row) and not _IS_LABEL.match(row[0].text)
        several = several and not (code and all(line.mono for line in row))
        wrapped = len(row) == 1 and len(run) > 1 and bool(words) and row[0].x0 > run[0][1].x0 - row[0].size
        if several or (wrapped and row[0].y - run[-1][0].y < 1.6 * row[0].size):
            run.append(row)
            continue
        table = _aligned(run)
        if table is None:
            plain += run
        else:
            if plain:
                yield plain
            yield table
            plain = []
        run = []
        plain += [row] if row else []
    if plain:
        yield plain


def _aligned(run: Sequence[Sequence[_Line]]) -> _Line | None:
    lines = sorted((line for row in run for line in row), key=lambda line: line.x0)
    if sum(len(row) > 1 for row in run) < 3:
        return None
    columns: list[list[float]] = []
    for line in lines:
        if columns and line.x0 < columns[-1][1] + 0.4 * line.size:
            columns[-1][1] = max(columns[-1][1], line.x1)
        else:
            columns.append([line.x0, line.x1])
    rows: list[list[str]] = []
    for row in run:
        cells = ["" for _ in columns]
        for line in row:
            at = next(at for at, (_, end) in enumerate(columns) if line.x0 <= end)
            cells[at] = f"{cells[at]} {line.text}".strip()
        if rows and len(row) == 1 and not cells[0]:
            rows[-1] = [f"{above}\n{cell}".strip() for above, cell in zip(rows[-1], cells, strict=True)]
        else:
            rows.append(cells)
    shared = sum(sum(map(bool, row)) > 1 for row in rows)
    if len(columns) < 2 or shared < 3 or shared < 0.7 * len(rows):
        return None
    return _Line([], columns[0][0], columns[-1][1], run[0][0].y, run[0][0].size, rows)


# Running heads and feet: what stands at the same height on most pages, but for its numbers, or on the pages around.

_MARGIN: Final = 0.1  # of the height of what is printed
_MAX_RUNNING: Final = 4
_AROUND: Final = 3
_OUTER_NUMBER = re.compile(r"\W*\b(\d{1,4})\b|\b(\d{1,4})\W*$")


def _without_running(pages: Sequence[Page]) -> None:
    printed = _printed([page.sheets[0] for page in pages if page.sheets])
    margins = [_margins(page.sheets[0], *printed[page.sheets[0].top]) if page.sheets else [] for page in pages]
    keys = [{(side, key, y) for side, rows in enumerate(ends) for key, y, _ in rows} for ends in margins]
    counts = Counter(key for page in keys for one in page for key in _nearby(one))
    offsets = [
        {(side, one) for side, rows in enumerate(ends) for one in _offsets(rows[:1], at)}
        for at, ends in enumerate(margins)
    ]
    most = max(1, 0.4 * sum(bool(page.sheets) for page in pages))
    steady = {offset for offset, count in Counter(one for page in offsets for one in page).items() if count > most}
    said = Counter(_words_text(row[2]) for ends in margins for rows in ends for row in rows)
    kept: list[list[Word]] = []
    for at, (page, ends) in enumerate(zip(pages, margins, strict=True)):
        around = [key for one in (*keys[max(0, at - _AROUND) : at], *keys[at + 1 : at + 1 + _AROUND]) for key in one]
        dropped: set[Word] = set()
        for side, rows in enumerate(ends):
            for row in rows:
                near = set(_nearby((side, *row[:2])))
                often = counts[side, row[0], row[1]] > most or sum(key in near for key in around) > 1
                numbered = row is rows[0] and any((side, one) in steady for one in _offsets([row], at))
                if not numbered and (not often or (not side and _is_heading(row[2], page, said))):
                    break
                dropped.update(row[2])
        kept.append([word for word in page.sheets[0].words if word not in dropped] if page.sheets else [])
    if any(kept):  # a form of two pages may be all alike
        for page, words in zip(pages, kept, strict=True):
            if page.sheets:
                page.sheets[0].words = words


def _is_heading(words: Sequence[Word], page: Page, said: Mapping[str, int]) -> bool:
    """Tell whether a line at the top of a page is larger than its text and stands nowhere else: "23 Release 0.2.5"."""
    text, size = _words_text(words), median(word.size for word in page.sheets[0].words)
    return said[text] == 1 and any(map(str.isdecimal, text)) and min(word.size for word in words) > _LARGER * size


def _printed(sheets: Sequence[Sheet]) -> dict[float, tuple[float, float]]:
    """The heights between which anything stands on pages of one size: their margins may be wide."""
    heights: dict[float, list[float]] = {}
    for sheet in sheets:
        heights.setdefault(sheet.top, []).extend(word.y for word in sheet.words)
    return {size: (min(found, default=0.0), max(found, default=0.0)) for size, found in heights.items()}


def _offsets(rows: Sequence[tuple[str, int, list[Word]]], at: int) -> set[int]:
    """How far the numbers at the ends of a row are from the place of the page in the file."""
    found = (number for _, _, words in rows for number in _OUTER_NUMBER.findall(_words_text(words)))
    return {int(number) - at for pair in found for number in pair if number}


def _nearby(key: tuple[int, str, int]) -> Iterator[tuple[int, str, int]]:
    return ((key[0], key[1], key[2] + step) for step in (-1, 0, 1))


def _margins(sheet: Sheet, top: float, bottom: float) -> list[list[tuple[str, int, list[Word]]]]:
    """The outermost rows at the top and at the bottom: text without its numbers, height, and words."""
    zone = _MARGIN * (bottom - top)
    high = [word for word in sheet.words if word.y < top + zone]
    low = [word for word in sheet.words if word.y > bottom - zone]
    rows = _row_groups(_lines(high))[:_MAX_RUNNING], _row_groups(_lines(low))[::-1][:_MAX_RUNNING]
    return [list(map(_margin_row, side)) for side in rows]


def _margin_row(row: list[_Line]) -> tuple[str, int, list[Word]]:
    text = re.sub(r"\d+|\b[ivxlc]+\b", "#", " ".join(line.text for line in row).casefold())
    return text, round(row[0].y / 3), [word for line in row for word in line.words]


# Lines to blocks: paragraphs, headings, code and tables.


@dataclass(slots=True)
class _Block:
    page: int
    pieces: list[tuple[str, str]]  # what stands before a line, a space or a line end, and the line
    size: float = 0.0
    bold: bool = False
    kind: str = "text"
    rows: list[list[str]] = field(default_factory=list)
    fresh: bool = False  # whether it opens a page or a column, so that it may go on with what stands before

    @property
    def text(self) -> str:
        return "".join(glue + text for glue, text in self.pieces).strip()

    def goes_on_from(self, before: "_Block") -> bool:
        alike = self.fresh and before.kind == self.kind == "text" and abs(before.size - self.size) < 0.3
        return alike and not before.text.endswith(_ENDS) and self.text[:1].islower()


_LABEL = r"[•▪◦‣●○■□➢✓–—*·-]|\(?(?:\d{1,3}|[A-Za-z]|[ivx]{1,5})[.)]|\d{1,3}(?:\.\d{1,3})+\.?"
_LABELLED = re.compile(rf"(?:{_LABEL})(?:\s|$)")
_IS_LABEL = re.compile(rf"(?:{_LABEL})$")
_BULLET = re.compile(r"[•▪◦‣●○■□➢✓–—·][ \t]+(?=\S)")
_ENDS = (".", "!", "?", ":", ";", "”", '"', "»", "…", "。", "|")
_RULE = re.compile(r"[-_=.*~\s]{3,}$")


def _blocks(pages: Sequence[Page], on_page: Callable[[int], None]) -> list[_Block]:
    _without_running(pages)
    blocks: list[_Block] = []
    sizes = Counter(word.mono for page in pages for sheet in page.sheets for word in sheet.words)
    code = 2 * sizes[True] < sizes.total()  # or else it is all written on a typewriter
    for number, page in enumerate(pages, start=1):
        on_page(number)
        for sheet in page.sheets:
            tables, words = _ruled_tables(sheet)
            for zone in _columns([*_lines(words), *tables]):
                parts = _aligned_tables(_row_groups(zone), code=code)
                made = [block for part in parts for block in _parts(part, number, code=code)]
                if made:
                    made[0].fresh = True
                blocks += made
        for paragraph in re.split(r"\n\s*\n", page.recognised) if page.recognised else ():
            blocks.append(_Block(number, [(" ", " ".join(line.split())) for line in paragraph.split("\n")]))
    blocks = _with_notes_before(block for block in blocks if block.rows or block.text)
    _mark_headings(blocks)
    return blocks


def _with_notes_before(blocks: Iterable[_Block]) -> list[_Block]:
    """Put notes at the foot of a page before its last paragraph where that goes on on the next one."""
    ordered: list[_Block] = []
    for block in blocks:
        last = len(ordered) - 1
        while last > 0 and ordered[last].kind == "text" and ordered[last].size < 0.95 * block.size:
            last -= 1
        is_cut = 0 <= last < len(ordered) - 1 and block.goes_on_from(ordered[last]) and not ordered[last].fresh
        if is_cut and ordered[last].page == ordered[-1].page:
            ordered.append(ordered.pop(last))
        ordered.append(block)
    return ordered


def _parts(part: list[list[_Line]] | _Line, page: int, *, code: bool) -> Iterator[_Block]:
    if isinstance(part, _Line):
        yield _Block(page, [], part.size, kind="table", rows=part.table)
        return
    for with_table, rows in groupby(part, key=lambda row: bool(row[0].table)):
        if with_table:
            for row in rows:
                yield _Block(page, [], row[0].size, kind="table", rows=row[0].table)
        else:
            yield from _paragraphs([_joined_row(row) for row in rows], page, code=code)


def _joined_row(row: list[_Line]) -> _Line:
    if len(row) == 1:
        return row[0]
    ordered = row[::-1] if _RTL.search(row[0].text) else row
    words, most = [word for line in ordered for word in line.words], max(row, key=lambda line: len(line.text))
    return replace(most, words=words, x0=row[0].x0, x1=row[-1].x1)


_ENOUGH_STEPS: Final = 4


def _paragraphs(lines: list[_Line], page: int, *, code: bool) -> Iterator[_Block]:
    lines = [line for line in lines if not _RULE.match(line.text)]
    if not lines:
        return
    steps = [low.y - high.y for high, low in pairwise(lines) if abs(low.size - high.size) < 0.5 and low.y > high.y]
    leading = min(median(steps), 2.2 * median(line.size for line in lines)) if len(steps) >= _ENOUGH_STEPS else 0.0
    left, right = min(line.x0 for line in lines), sorted(line.x1 for line in lines)[int(0.8 * (len(lines) - 1) + 0.99)]
    current: list[_Line] = []
    for line in lines:
        if current and _parted(current[-1], line, leading, code=code):
            yield _paragraph(current, page, left, right, code=code)
            current = []
        current.append(line)
    yield _paragraph(current, page, left, right, code=code)


def _parted(above: _Line, line: _Line, leading: float, *, code: bool) -> bool:
    step = line.y - above.y
    size = max(line.size, above.size)
    if code and above.mono != line.mono:  # a wrapped line may be all code by chance
        runs_on = line.mono and abs(line.x0 - above.x0) < 2 and not above.text.endswith(_ENDS)
        return not runs_on or step > 1.4 * size
    if code and line.mono:
        return step > 2.5 * size
    if abs(line.size - above.size) > 0.06 * size or line.bold != above.bold:
        return True
    if step > max(1.22 * leading, leading + 0.2 * size, (1.4 if leading else 1.55) * size) or step <= 0:
        return True
    indented = line.x0 - above.x0
    return 0.8 * size < indented < 4 * size and above.text.endswith(_ENDS) and not _LABELLED.match(above.text)


def _paragraph(lines: list[_Line], page: int, left: float, right: float, *, code: bool) -> _Block:
    size = max(lines, key=lambda line: len(line.text)).size
    if code and lines[0].mono:
        margin = min(line.x0 for line in lines)
        pieces = [("\n", " " * round((line.x0 - margin) / (0.6 * size)) + line.text) for line in lines]
        return _Block(page, pieces, size, bold=all(line.bold for line in lines), kind="code")
    pieces = [("", lines[0].text)]
    for above, line in pairwise(lines):
        first = line.words[0]
        room = right - above.x1 if not _RTL.search(above.text) else above.x0 - left
        ended = room > first.x1 - first.x0 + 0.4 * size and not above.text.endswith(("-", ","))
        labelled = _LABELLED.match(line.text) and not goes_on_with_number(above.text, line.text)
        pieces.append(("\n" if ended or labelled or " ... " in above.text else " ", line.text))
    return _Block(page, pieces, size, bold=all(line.bold for line in lines))


# Headings by size, weight and number, and the text of it all.

_LARGER: Final = 1.1
_AS_LARGE: Final = 0.8
_PART = re.compile(r"(?:§|[^\W\d_]+\.?\s)?\s*(?:\d{1,3}|[IVX]+)\b(?!\.\d)")  # "1 Name", "Article 1", "§ 3"
_MAX_LEVEL: Final = 5  # the sixth is for terms
_CONTENTS: Final = 5  # lines with leaders on a page of contents
_NUMBERED = re.compile(r"((?:\d{1,3}|[A-Z](?=\.\d))(?:\.\d{1,3})*)\.?\s+\S")


def _body_size(blocks: Sequence[_Block]) -> float:
    sizes: Counter[float] = Counter()
    for block in blocks:
        if block.kind == "text" and block.size:  # what was recognised has none
            sizes[round(2 * block.size) / 2] += len(block.text)
    return max(sizes, key=lambda size: (sizes[size], size), default=0.0)


def _title(blocks: Sequence[_Block]) -> str:
    """The headings that stand on the first page with the largest one, if they are about as large and have no number."""
    groups = groupby((block for block in blocks if block.page == 1), key=lambda block: block.kind == "heading")
    runs = [list(run) for is_heading, run in groups if is_heading]
    run = max(runs, key=lambda run: max(block.size for block in run), default=[])[:4]  # a title has no more
    least = _AS_LARGE * max((block.size for block in run), default=0.0)
    return ": ".join(" ".join(one.text.split()) for one in run if one.size >= least and not _PART.match(one.text))


def _mark_headings(blocks: Sequence[_Block]) -> None:
    body = _body_size(blocks)
    plain = [block for block in blocks if block.kind == "text" and block.size]
    weighty = _is_weighty(plain)
    code = [block for block in blocks if block.kind == "code"]
    names = [block for block in code if block.bold and len(block.text.split()) == 1] if not _is_weighty(code) else []
    leaders = Counter(block.page for block in plain for _, text in block.pieces if " ... " in text)
    for block in [*plain, *names]:
        text = block.text
        short = len(block.pieces) <= 3 and len(text) <= 200 and sum(map(str.isalpha, text)) > 1
        if not short or _BULLET.match(text) or " ... " in text or text.endswith((",", ";", "-")):
            continue
        larger = block.size >= _LARGER * body and (len(text.split()) <= 12 or not text.endswith("."))
        number = _NUMBERED.match(text)
        title = len(text) <= 120 and not text.endswith((".", ":") if not number else ":")
        title = title and (block.kind == "code" or not text[0].islower())
        bold = block.bold and not weighty and leaders[block.page] < _CONTENTS
        if larger or (bold and block.size >= 0.95 * body and title):
            block.kind = "heading"


def _is_weighty(blocks: Sequence[_Block]) -> bool:
    """Tell whether so much is bold that it marks nothing."""
    return sum(len(block.text) for block in blocks if block.bold) > 0.4 * sum(len(block.text) for block in blocks)


def _levels(blocks: Sequence[_Block]) -> dict[tuple[float, bool, int], int]:
    """Levels by rank of size, then of weight, then of the depth of their numbers."""
    found = {_style(block) for block in blocks if block.kind == "heading"}
    styles = sorted(found, key=lambda one: (-one[0], not one[1], one[2]))
    return {style: min(rank, _MAX_LEVEL) for rank, style in enumerate(styles, start=1)}


def _style(block: _Block) -> tuple[float, bool, int]:
    number = _NUMBERED.match(block.text)
    return round(block.size), block.bold, 1 + (number[1].count(".") if number else 0)


_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_OPTION = re.compile(r"-{1,2}[a-z]")
_JOINING: Final = frozenset(listed("sentences", "joining"))
_MARKUP = re.compile(r"^(?=#{1,6}[ \t]|\||```|~~~)", re.MULTILINE)


class _Writer:
    """Puts the blocks together and notes where each page lies."""

    def __init__(self, blocks: Sequence[_Block], pages: int) -> None:
        self._blocks = blocks
        self._pages = pages
        self._levels = _levels(blocks)
        whole = (word for block in blocks for _, text in block.pieces for word in text.casefold().split()[1:-1])
        self._words = frozenset(found for word in whole for found in _WORD.findall(word))
        self._parts: list[str] = []
        self._length = 0

    def write(self) -> tuple[str, tuple[PageSpan, ...]]:
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        before: _Block | None = None
        for block in self._blocks:
            glue, pieces = self._written(block, before)
            for at, (space, text) in enumerate(pieces):
                self._append(glue if not at else space, text)
                starts.setdefault(block.page, self._length - len(text))
            ends[block.page] = self._length
            before = block
        spans: list[PageSpan] = []
        end = 0
        for page in range(1, self._pages + 1):
            start = starts.get(page, end)
            if spans and spans[-1].end > start:  # a broken word has lost its hyphen
                spans[-1] = spans[-1]._replace(end=start)
            end = ends.get(page, start)
            spans.append(PageSpan(page, start, end))
        return "".join(self._parts), tuple(spans)

    def _append(self, glue: str, text: str) -> None:
        if glue == " ":
            above = self._parts.pop()
            self._length -= len(above)
            glue = self._joined(above, text).removesuffix(text)
        self._parts += [glue, text]
        self._length += len(glue) + len(text)

    def _joined(self, above: str, text: str) -> str:
        """Two lines of a paragraph or cell as one, without the hyphen of a broken word."""
        head = _WORD.match(text)
        tail = next(iter(_WORD.findall(above[:-1][-80:])[-1:]), "")
        if above[-1:] in {"-", "\u00ad", "\u2010"} and above[-2:-1].isalnum() and text[:1].isalnum():
            whole = tail.casefold(), head[0].casefold() if head else ""
            goes_on = head and head[0][0].islower() and tail and not _OPTION.match(above.rsplit(maxsplit=1)[-1])
            broken = above[-1] == "\u00ad" or (goes_on and not self._keeps(*whole))
            suspended = whole[1] in _JOINING and "".join(whole) not in self._words  # "Alten- und Kindersitzungen"
            return (f"{above} " if suspended else above[:-1] if broken else above) + text
        unspaced = above and text and UNSPACED.match(above[-1]) and UNSPACED.match(text[0])
        address = above.endswith(":") and text.startswith("//")
        return above + ("" if unspaced or address else " ") + text

    def _keeps(self, tail: str, head: str) -> bool:
        """Tell a compound that broke at its hyphen from a word that got one."""
        joined = f"{tail}-{head}" in self._words or {tail, head} <= self._words
        return tail + head not in self._words and (joined or head.partition("-")[0] in _JOINING)

    def _written(self, block: _Block, before: _Block | None) -> tuple[str, list[tuple[str, str]]]:
        """What stands before a block, and its lines."""
        glue = "\n\n" if before else ""
        if block.kind == "table":
            rows = [[reduce(self._joined, cell.split("\n")) for cell in row] for row in block.rows]
            if before and before.kind == "table" and block.fresh and len(before.rows[0]) == len(rows[0]):
                rows = rows[block.rows[0] == before.rows[0] :]
                return "\n", [("", markdown_table(rows, headed=False))]
            return glue, [("", markdown_table(rows))]
        if block.kind == "code":
            code = "".join(space + text for space, text in block.pieces).strip("\n")
            return glue, [("", f"```\n{code}\n```")]
        if block.kind == "heading":
            marks = "#" * self._levels[_style(block)]
            return glue, [("", marks)] + [(" ", text) for _, text in block.pieces]
        pieces = [(space, _MARKUP.sub(r"\\", _BULLET.sub("- ", text, count=1))) for space, text in block.pieces]
        return " " if before and block.goes_on_from(before) else glue, pieces
