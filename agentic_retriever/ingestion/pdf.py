"""PDF files, by PDFium (extra ``pdf``): under a lock, as it is not thread-safe, with a limit of computing time."""

import ctypes
import math
import re
import threading
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import Any, Final

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion import documents
from agentic_retriever.ingestion.pdf_layout import GAP, Page, Ruling, Sheet, Word, lay_out, merged_rulings
from agentic_retriever.text.language_files import packaged_json

MAX_PAGES: Final = 5_000
MAX_SECONDS: Final = 120.0  # of computing, for one document; Tesseract, a process of its own, is not counted
_MAX_PAGE_CHARS: Final = 100_000
_MAX_CHARS: Final = 20_000_000
_MAX_OBJECTS: Final = 20_000  # of one page, and lines that are drawn on it; a map or a drawing has more, and no table
_OCR_SECONDS: Final = 60  # of one page
_OCR_DPI: Final = 300
_LOCK = threading.Lock()
_OVER: Final = 0.2  # of the size: TeX draws an accent first, and its letter below it
_COMBINING: Final = dict(zip("´`ˆ¨˜¸ˇ", "\u0301\u0300\u0302\u0308\u0303\u0327\u030c", strict=True))

_NO_TITLE = re.compile(
    r"\s*$|(?:untitled|document|slide|layout|presentation|powerpoint presentation|none|title)\s*\d*$|microsoft word - "
    r"|.*\.(?:docx?|odt|pdf|tex|dvi|indd|qxd|xlsx?|pptx?|html?|md|rst|txt|ps|rtf|pages)$|[^\s]*[_/\\][^\s]*$",
    re.IGNORECASE,
)
_DATE = re.compile(r"(?:D:)?(\d{4})-?(\d\d)?-?(\d\d)?")


def read_pdf(
    file: documents.SourceFile, *, clock: Callable[[], float] = time.thread_time
) -> Iterator[documents.SourceDocument | documents.SkippedSource]:
    """Read a PDF; pages that are broken, or scanned where nothing recognises their text, are reported one by one."""
    try:
        import pypdfium2 as pdfium  # noqa: PLC0415 - an optional extra
    except ImportError as err:
        raise SourceError("needs a PDF reader: pip install 'agentic-retriever[pdf]'") from err
    data = file.read()
    try:
        with _LOCK:
            pages, info = _read_pages(pdfium, data, clock)
    except pdfium.PdfiumError as err:
        raise SourceError(_REFUSALS.get(err.err_code, "is no readable PDF; export it again")) from err
    _check_readable(pages)
    for number, page in enumerate(pages, start=1):
        if page.problem:
            yield documents.SkippedSource(f"{file.source}#page={number}", page.problem)
    if b"%%EOF" not in data[-2048:]:
        yield documents.SkippedSource(f"{file.source}#page={len(pages) + 1}", "the file is cut off; get it again")
    limit = clock() + MAX_SECONDS
    layout = lay_out(pages, on_page=lambda number: _check_time(clock() > limit, number, len(pages)))
    given = " ".join(documents.clean_text(info.get("Title", "")).split())
    given = "" if _NO_TITLE.match(given) else given
    known, printed = ({*re.findall(r"\w+", title.casefold())} for title in (given, layout.title))
    title = layout.title if known <= printed else given if printed <= known else f"{given}: {layout.title}"
    dates = {"created": _iso_date(info.get("CreationDate", "")), "modified": _iso_date(info.get("ModDate", ""))}
    metadata = {name: day for name, day in dates.items() if day}
    yield replace(file.document(layout.text, kind="pdf", title=title), pages=layout.pages, metadata=metadata)


def _check_time(over: bool, number: int, count: int) -> None:
    if over:
        taken = f"took more than {MAX_SECONDS:.0f} s up to page {number} of {count}"
        raise SourceError(f"{taken}; split it or export it again")


def _check_readable(pages: Sequence[Page]) -> None:
    if any(page.sheets or page.recognised for page in pages):
        return
    problem = next((page.problem for page in pages if page.problem and not page.scanned), "")
    raise SourceError(f"has no page that can be read: {problem}; export it again" if problem else _NO_TEXT)


_REFUSALS = {
    4: "is locked by a password; save a copy without one",  # FPDF_ERR_PASSWORD
    5: "is encrypted; save a copy without encryption",  # FPDF_ERR_SECURITY
}
_NO_TEXT = (
    "holds no text, perhaps only scanned images; install Tesseract and 'agentic-retriever[ocr]', or run text "
    "recognition (OCR) on it first"
)
_NO_PAGE_TEXT = "the page is a scanned image; install Tesseract and 'agentic-retriever[ocr]' to have its text"


def _iso_date(given: str) -> str:
    found = _DATE.match(given.strip())
    if found:
        with suppress(ValueError):
            return date(int(found[1]), int(found[2] or 1), int(found[3] or 1)).isoformat()
    return ""


def _read_pages(pdfium: Any, data: bytes, clock: Callable[[], float]) -> tuple[list[Page], Any]:  # noqa: ANN401
    raw, limit = pdfium.raw, clock() + MAX_SECONDS
    doc = pdfium.PdfDocument(data)
    try:
        count = len(doc)
        if count > MAX_PAGES:
            raise SourceError(f"has {count:,} pages, at most {MAX_PAGES:,} are read; split it")
        pages: list[Page] = []
        total = 0
        for number in range(count):
            handle = raw.FPDF_LoadPage(doc.raw, number)
            try:
                page = _PageReader(raw, handle).read() if handle else Page(problem=_BROKEN)
                if page.scanned:
                    _recognise(raw, handle, page)
            finally:
                if handle:
                    raw.FPDF_ClosePage(handle)
            pages.append(page)
            total += sum(len(word.text) for sheet in page.sheets for word in sheet.words)
            _check_time(clock() > limit, number + 1, count)
            if total > _MAX_CHARS:
                raise SourceError(f"holds more than {_MAX_CHARS:,} characters; split it")
        return pages, doc.get_metadata_dict()
    finally:
        doc.close()


_BROKEN = "the page is broken; its text is left out"
_BOLD = re.compile(r"bold|black|heavy|semib|demi|[-,]b[dx]?$|cmbx|cmssbx", re.IGNORECASE)
_MONO = re.compile(r"mono|nimbusmon|courier|consol|typewriter|cmtt|sftt|ectt|menlo|[a-z]tt\d+$", re.IGNORECASE)
_FIXED_PITCH, _FORCE_BOLD = 1, 1 << 18
_SMALL_GAP: Final = 0.08  # of the size: a narrower one parts none, where PDFium only supposes a space
_SUPERSCRIPT = str.maketrans("0123456789+-()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾")
# Ligatures and signs as letters; codes below 32, which stand for them in fonts of TeX that name no letters, too.
_SIGNS = str.maketrans(packaged_json("ingestion/pdf.json"))


class _PageReader:
    def __init__(self, raw: Any, page: Any) -> None:  # noqa: ANN401
        self._raw = raw
        self._page = page
        self._words: dict[int, list[Word]] = {}
        self._rulings: list[tuple[float, float, float, float]] = []
        self._objects = 0
        self._image = 0.0
        self._style: dict[tuple[bytes, int], tuple[bool, bool]] = {}

    def read(self) -> Page:
        objects = self._raw.FPDFPage_CountObjects(self._page)
        self._scan(((self._raw.FPDFPage_GetObject, self._page, at) for at in range(objects)), (1, 0, 0, 1, 0, 0), 0)
        text = self._raw.FPDFText_LoadPage(self._page)
        if not text:
            return Page(problem=_BROKEN)
        try:
            count = self._raw.FPDFText_CountChars(text)
            if count > _MAX_PAGE_CHARS:
                return Page(problem=f"the page has {count:,} characters, at most {_MAX_PAGE_CHARS:,} are read")
            self._read_words(text, count)
        finally:
            self._raw.FPDFText_ClosePage(text)
        box = self._raw.FS_RECTF()
        self._raw.FPDF_GetPageBoundingBox(self._page, box)
        area = abs((box.right - box.left) * (box.top - box.bottom))
        found = sorted(self._words.items(), key=lambda item: -sum(len(word.text) for word in item[1]))
        sheets = [self._sheet(turn, words, box) for turn, words in found]
        return Page([sheet for sheet in sheets if sheet.words], scanned=not found and self._image > area / 3)

    def _sheet(self, turn: int, words: list[Word], box: Any) -> Sheet:  # noqa: ANN401
        left, right, top, bottom = _turned(turn, box.left, box.bottom, box.right, box.top)
        inside = [word for word in words if left <= word.middle[0] <= right and top <= word.middle[1] <= bottom]
        across, down = [], []
        lines = self._rulings if len(self._rulings) <= _MAX_OBJECTS else []
        for x0, x1, y0, y1 in (_turned(turn, *line) for line in lines):
            if y1 - y0 < 1 < x1 - x0:
                across.append(Ruling((y0 + y1) / 2, x0, x1))
            elif x1 - x0 < 1 < y1 - y0:
                down.append(Ruling((x0 + x1) / 2, y0, y1))
        return Sheet(inside, merged_rulings(across), merged_rulings(down), top, bottom)

    def _read_words(self, text: Any, count: int) -> None:  # noqa: ANN401
        raw, box = self._raw, self._raw.FS_RECTF()
        chars: list[str] = []
        lefts: list[float] = []  # where each of them begins
        shape: tuple[int, float, float, bool, bool] | None = None
        x0 = x1 = low = 0.0
        spaced = supposed = last_spaced = False
        for at in range(count):
            char = chr(raw.FPDFText_GetUnicode(text, at)).translate(_SIGNS)
            if not char or char.isspace() or char < " " or "\ue000" <= char <= "\uf8ff":
                supposed = raw.FPDFText_IsGenerated(text, at) == 1
                spaced = True
                continue
            raw.FPDFText_GetLooseCharBox(text, at, box)
            if shape:
                left, right, _, bottom = _turned(shape[0], box.left, box.bottom, box.right, box.top)
                gap, size = max(left - x1, x0 - right), shape[2]
                joins = (not spaced or (supposed and gap < _SMALL_GAP * size)) and gap < GAP * size
                joins = joins and not (x0 < left < x1 - _SMALL_GAP * size and self._begins_cell(box, size))
                if joins and abs(bottom - low) < 0.12 * size:
                    if char in _COMBINING and (over := bisect_right(lefts, (left + right) / 2)) and right < x1:
                        chars[over - 1] = unicodedata.normalize("NFC", chars[over - 1] + _COMBINING[char])
                        continue  # an accent that is drawn behind its word
                    if x1 - left > _OVER * size and chars[-1] in _COMBINING:
                        char = unicodedata.normalize("NFC", char.replace("ı", "i") + _COMBINING[chars.pop()])
                        lefts.pop()
                    chars.append(char)
                    lefts.append(left)
                    x0, x1, spaced = min(x0, left), max(x1, right), False
                    continue
                self._add("".join(chars), x0, x1, shape, spaced=last_spaced)
                last_spaced = not joins
            shape = self._shape(text, at)
            x0, x1, _, low = _turned(shape[0], box.left, box.bottom, box.right, box.top)
            chars, lefts, spaced = [char], [x0], False
        if shape:
            self._add("".join(chars), x0, x1, shape, spaced=last_spaced)

    def _begins_cell(self, box: Any, size: float) -> bool:  # noqa: ANN401
        """Tell whether a drawn line stands just before a character: the text of the cell before goes on beyond it."""
        lines = (line for line in self._rulings if abs(line[0] - line[2]) < 1 and box.left - size < line[0] <= box.left)
        return any(min(y0, y1) <= box.bottom <= max(y0, y1) for _, y0, _, y1 in lines)

    def _shape(self, text: Any, at: int) -> tuple[int, float, float, bool, bool]:  # noqa: ANN401
        """Direction in quarters of a turn, baseline, size, and whether it is bold and of fixed pitch."""
        raw = self._raw
        matrix, name, flags = raw.FS_MATRIX(), ctypes.create_string_buffer(64), ctypes.c_int()
        raw.FPDFText_GetMatrix(text, at, matrix)
        raw.FPDFText_GetFontInfo(text, at, name, 64, flags)
        x, y = ctypes.c_double(), ctypes.c_double()
        raw.FPDFText_GetCharOrigin(text, at, x, y)
        turn = round(math.atan2(matrix.b, matrix.a) / (math.pi / 2)) % 4
        size = raw.FPDFText_GetFontSize(text, at) * (math.hypot(matrix.c, matrix.d) or 1.0)
        key = (name.value, flags.value)
        if key not in self._style:
            font = name.value.decode("utf-8", "replace")
            bold = bool(_BOLD.search(font)) or flags.value & _FORCE_BOLD > 0
            self._style[key] = bold, bool(_MONO.search(font)) or flags.value & _FIXED_PITCH > 0
        return turn, _turned(turn, x.value, y.value, x.value, y.value)[3], max(size, 1.0), *self._style[key]

    def _add(
        self, text: str, x0: float, x1: float, shape: tuple[int, float, float, bool, bool], *, spaced: bool
    ) -> None:
        turn, y, size, bold, mono = shape
        words = self._words.setdefault(turn, [])
        if any("\ud800" <= char <= "\udfff" for char in text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        before = words[-1] if words else None
        if before and not spaced and x1 > before.x0:  # raised or lowered beside the word that it belongs to
            if size < 0.85 * before.size and 0.15 * before.size < before.y - y < 0.7 * before.size:
                text = text.translate(_SUPERSCRIPT)
            elif 0.5 * size < before.size < 0.85 * size and 0.15 * size < y - before.y < 0.7 * size:
                spaced = len(text) > 2  # the mark of a note, or the number of a sentence; or else "¹⁴C"
                words[-1] = before = before._replace(text=before.text.translate(_SUPERSCRIPT), y=y)
            y = before.y if abs(y - before.y) < 0.7 * before.size else y
        words.append(Word(documents.clean_text(text), x0, x1, y, size, bold, mono, spaced, len(words)))

    def _scan(self, found: Iterable[tuple[Any, Any, int]], matrix: tuple[float, ...], depth: int) -> None:
        """Collect drawn lines and the size of images, also inside of forms."""
        raw = self._raw
        for get, holder, at in found:
            self._objects += 1
            if self._objects > _MAX_OBJECTS:
                return
            one = get(holder, at)
            kind = raw.FPDFPageObj_GetType(one)
            if kind not in {raw.FPDF_PAGEOBJ_PATH, raw.FPDF_PAGEOBJ_FORM, raw.FPDF_PAGEOBJ_IMAGE}:
                continue
            own = raw.FS_MATRIX()
            raw.FPDFPageObj_GetMatrix(one, own)
            here = _multiplied((own.a, own.b, own.c, own.d, own.e, own.f), matrix)
            if kind == raw.FPDF_PAGEOBJ_IMAGE:
                self._image += abs(here[0] * here[3] - here[1] * here[2])
            elif kind == raw.FPDF_PAGEOBJ_FORM and depth < 3:
                inner = raw.FPDFFormObj_CountObjects(one)
                self._scan(((raw.FPDFFormObj_GetObject, one, i) for i in range(max(0, inner))), here, depth + 1)
            elif kind == raw.FPDF_PAGEOBJ_PATH:
                self._read_path(one, here)

    def _read_path(self, path: Any, matrix: tuple[float, ...]) -> None:  # noqa: ANN401
        raw = self._raw
        count = raw.FPDFPath_CountSegments(path)
        self._objects += count
        if self._objects > _MAX_OBJECTS:
            return
        first = last = (0.0, 0.0)
        x, y = ctypes.c_float(), ctypes.c_float()
        a, b, c, d, e, f = matrix
        for at in range(count):
            segment = raw.FPDFPath_GetPathSegment(path, at)
            raw.FPDFPathSegment_GetPoint(segment, x, y)
            point = (a * x.value + c * y.value + e, b * x.value + d * y.value + f)
            kind = raw.FPDFPathSegment_GetType(segment)
            if kind == raw.FPDF_SEGMENT_MOVETO:
                first = point
            elif kind == raw.FPDF_SEGMENT_LINETO:
                self._rulings.append((*last, *point))
            if raw.FPDFPathSegment_GetClose(segment):
                self._rulings.append((*point, *first))
            last = point


def _turned(turn: int, x0: float, y0: float, x1: float, y1: float) -> tuple[float, float, float, float]:
    """Left, right, top and bottom of a box for a reader of text that runs in the given direction."""
    cos, sin = ((1, 0), (0, 1), (-1, 0), (0, -1))[turn]
    xs = sorted((x0 * cos + y0 * sin, x1 * cos + y1 * sin))
    ys = sorted((x0 * sin - y0 * cos, x1 * sin - y1 * cos))
    return xs[0], xs[1], ys[0], ys[1]


def _multiplied(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    a, b, c, d, e, f = one
    p, q, r, s, t, u = other
    return a * p + b * r, a * q + b * s, c * p + d * r, c * q + d * s, e * p + f * r + t, e * q + f * s + u


def _recognise(raw: Any, handle: Any, page: Page) -> None:  # noqa: ANN401
    """Have Tesseract read a scanned page (extra ``ocr``)."""
    try:
        import pytesseract  # noqa: PLC0415 - an optional extra
        from PIL import Image  # noqa: PLC0415
    except ImportError:
        page.problem = _NO_PAGE_TEXT
        return
    scale = min(_OCR_DPI / 72, 6_000 / max(raw.FPDF_GetPageWidthF(handle), raw.FPDF_GetPageHeightF(handle), 1.0))
    width, height = (round(scale * of(handle)) or 1 for of in (raw.FPDF_GetPageWidthF, raw.FPDF_GetPageHeightF))
    bitmap = raw.FPDFBitmap_Create(width, height, 0)
    try:
        raw.FPDFBitmap_FillRect(bitmap, 0, 0, width, height, 0xFFFFFFFF)
        raw.FPDF_RenderPageBitmap(bitmap, handle, 0, 0, width, height, 0, raw.FPDF_GRAYSCALE)
        stride = raw.FPDFBitmap_GetStride(bitmap)
        pixels = ctypes.string_at(raw.FPDFBitmap_GetBuffer(bitmap), stride * height)
    finally:
        raw.FPDFBitmap_Destroy(bitmap)
    image = Image.frombytes("RGB", (width, height), pixels, "raw", "BGRX", stride).convert("L")
    try:
        languages = [name for name in pytesseract.get_languages() if name != "osd"]
        text = pytesseract.image_to_string(image, lang="+".join(languages) or None, timeout=_OCR_SECONDS)
        page.recognised = documents.clean_text(text).strip()
    except pytesseract.TesseractNotFoundError:
        page.problem = _NO_PAGE_TEXT
    except (pytesseract.TesseractError, RuntimeError) as err:  # RuntimeError: it took too long
        page.problem = f"the page is a scanned image that Tesseract could not read ({str(err)[:80]})"
