import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import fpdf
import pypdfium2
import pytest

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion import SkippedSource, SourceDocument, pdf
from agentic_retriever.ingestion.chunking import ChunkSettings, chunk_document
from agentic_retriever.ingestion.documents import locate
from agentic_retriever.sample import SAMPLE_INDEXES
from agentic_retriever.testing import FakeEmbedding

PAGES = (
    ["6.2.1. Presencia", "Obligatoria en los vehículos de motor."],
    [],
    ["6.2.2. Número", "Dos o cuatro, según la categoría."],
)
FILLER = "Los faros se montan de modo que su posición no cambie con las vibraciones normales del vehículo en marcha. "


class Paper(fpdf.FPDF):
    """Pages with a running head and a number at the foot, unless they are given empty."""

    head = ""

    def __init__(self, head="", **options):
        super().__init__(**options)
        self.head = head
        self.set_font("Helvetica", size=10)

    def header(self):
        if self.head:
            self.set_font("Helvetica", size=8)
            self.cell(0, 5, self.head, new_x="LMARGIN", new_y="NEXT")
            self.ln(10)
            self.set_font("Helvetica", size=10)

    def footer(self):
        if self.head:
            self.set_y(-15)
            self.cell(0, 5, f"- {self.page_no()} -", align="C")

    def line(self, text, size=10, style="", height=5):
        self.set_font("Helvetica", style, size)
        self.multi_cell(0, height, text, new_x="LMARGIN", new_y="NEXT", align="L")
        self.set_font("Helvetica", size=10)

    def paragraph(self, text):
        self.line(text)
        self.ln(4)

    @property
    def data(self):
        return bytes(self.output())


def pdf_bytes(pages=PAGES, *, title="", password=None):
    paper = Paper()
    paper.set_title(title)
    if password is not None:
        paper.set_encryption(owner_password="owner", user_password=password)
    for lines in pages:
        paper.add_page()
        for line in lines:
            paper.cell(0, 10, line, new_x="LMARGIN", new_y="NEXT")
    return paper.data


def regulation():
    """Two pages, the second of which begins in the middle of a section."""
    paper = Paper("Reglamento de alumbrado, edición 2020")
    paper.add_page()
    paper.line("Reglamento de alumbrado", 18, "B", 10)
    paper.line("6.1. Luces de carretera", 13, "B", 8)
    paper.line("6.1.2. Número", 10, "B", 8)
    paper.paragraph("Dos o cuatro. " + FILLER * 4)
    paper.line("6.2. Luces de cruce", 13, "B", 8)
    paper.line("6.2.2. Número", 10, "B", 8)
    paper.paragraph("El número de las luces de cruce que puede llevar un vehículo se fija aquí. " + FILLER * 6)
    paper.add_page()
    paper.paragraph("Un vehículo puede llevar dos luces de cruce.")
    paper.line("6.3. Luces antiniebla", 13, "B", 8)
    paper.paragraph(FILLER * 3)
    return paper.data


def test_pages_have_spans_and_nodes_know_page_and_section(read_one):
    doc = read_one("ley_de_luces.pdf", pdf_bytes())
    assert (doc.kind, doc.title, doc.doc_id) == ("pdf", "ley de luces", "ley_de_luces.pdf")
    assert [page.number for page in doc.pages] == [1, 2, 3]
    texts = [doc.text[page.start : page.end] for page in doc.pages]
    assert texts == ["\n\n".join(PAGES[0]), "", "\n\n".join(PAGES[2])]
    (node,) = chunk_document(doc, ChunkSettings())
    assert (node.metadata["page"], node.metadata["section_number"]) == (1, ["6.2.1", "6.2.2"])
    assert [node.text[at:][:5] for at, _ in node.metadata["section_starts"]] == ["6.2.1", "6.2.2"]
    assert node.metadata["page_numbers"] == [1, 2, 3]
    assert node.text == doc.text[node.start_char_idx : node.end_char_idx]


def test_headings_rank_by_size_and_number_and_running_heads_and_feet_are_left_out(read_one):
    doc = read_one("a.pdf", regulation())
    assert [line for line in doc.text.split("\n") if line.startswith("#")] == [
        "# Reglamento de alumbrado", "## 6.1. Luces de carretera", "### 6.1.2. Número", "## 6.2. Luces de cruce",
        "### 6.2.2. Número", "## 6.3. Luces antiniebla",
    ]  # fmt: skip
    assert doc.title == "Reglamento de alumbrado"
    assert "edición 2020" not in doc.text
    assert "- 1 -" not in doc.text
    second = doc.pages[1]
    assert doc.text[second.start : second.end].startswith("Un vehículo puede llevar dos luces de cruce.")


def test_numbers_of_pages_are_left_out_within_wide_margins_and_those_of_sections_are_kept(read_one):
    paper = Paper()
    paper.footer = lambda: (paper.set_y(-100), paper.cell(0, 5, str(paper.page_no()), align="C"))
    paper.set_auto_page_break(auto=True, margin=110)
    paper.set_top_margin(90)
    for heading in ("", "2 Zweiter Teil", "", "", ""):
        paper.add_page()
        paper.line(heading, size=16)
        paper.paragraph(FILLER * 3)
    lines = read_one("a.pdf", paper.data).text.split("\n")
    assert [line for line in lines if line[:1].isdigit() or line.startswith("#")] == ["# 2 Zweiter Teil"]


def test_a_citation_names_the_page_of_its_quote(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.pdf").write_bytes(regulation())
    config = RouterConfig(data_dir=tmp_path / "data", query_log="none")
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as router:
        router.add_index("ley", tmp_path / "in")
        answer = router.query("¿Puede llevar un vehículo dos luces de cruce?")
    [citation] = [one for one in answer.citations if "dos luces de cruce" in one.quote][:1]
    assert citation.quote == "Un vehículo puede llevar dos luces de cruce."
    assert (citation.page, citation.pages, citation.place) == (2, (2,), "p. 2")
    assert "6.2.2" in citation.section


def printed(path):
    """A Markdown document of the sample as pages with running heads and numbers, and the page of each paragraph."""
    source = path.read_text(encoding="utf-8").split("---\n", 2)[2].replace("−", "-").replace("*", "").strip()
    paper, pages = Paper("Anexo III. Alumbrado y señalización luminosa"), {}
    paper.add_page()
    for block in source.split("\n\n"):
        if block.startswith("#"):
            paper.line(block.lstrip("# "), (18, 14, 12, 10)[block.index(" ") - 1], "B", 8)
            continue
        if block.startswith("|"):
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.split("\n")]
            with paper.table() as table:
                for cells in (rows[0], *rows[2:]):
                    row = table.row()
                    for cell in cells:
                        row.cell(cell)
        else:
            paper.line(block)
            pages[block] = paper.page
        paper.ln(4)
    return paper.data, pages


def test_a_regulation_in_print_is_answered_from_the_section_that_was_asked_about(tmp_path, local_embedding):
    folder = next(one.folder for one in SAMPLE_INDEXES if one.name == "homologacion")
    data, pages = printed(Path(folder) / "anexo-03-alumbrado.md")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "anexo.pdf").write_bytes(data)
    config = RouterConfig(data_dir=tmp_path / "data", query_log="none")
    with AgenticRouter(config, embedding=local_embedding) as router:
        router.add_index("ley", tmp_path / "in", views=False)
        first, *_ = router.query("¿Cuántas luces de cruce puede llevar un vehículo?").citations
        text = router.index("ley").source_text("anexo.pdf")
    assert (first.quote[:4], first.section.rpartition(" > ")[2]) == ("Dos.", "6.2.2. Número")
    assert first.page == next(page for block, page in pages.items() if first.quote[:30] in block) == 2
    assert text.count("Anexo III") == 1


def test_a_sentence_that_runs_over_the_end_of_a_page_is_whole_and_stands_on_both(read_one):
    paper = Paper("Kopf")
    paper.add_page()
    paper.paragraph("Erstens steht hier etwas, das bis an das Ende der Seite geht und dann wei-")
    paper.add_page()
    paper.paragraph("tergeht, ohne dass ein Satz endet.")
    doc = read_one("a.pdf", paper.data)
    assert "und dann weitergeht, ohne" in doc.text
    [node] = chunk_document(doc, ChunkSettings())
    assert node.metadata["page_numbers"] == [1, 2]
    first, second = (doc.text[page.start : page.end] for page in doc.pages)
    assert (first[-3:], second[:9]) == ("wei", "tergeht, ")
    assert node.metadata["page_starts"] == [0, doc.text.index("tergeht")]


def test_notes_at_the_foot_of_a_page_part_no_sentence_and_their_marks_no_line(read_one):
    paper = Paper("Kopf")
    paper.add_page()
    paper.paragraph(FILLER * 6)
    paper.paragraph("Der Verein darf nicht ohne")
    for mark, y, note in ("1", 230, "Vereine der Stadt haben einen Sitz."), ("2", 240, "Alle stehen im Register."):
        paper.set_font("Helvetica", size=5)
        paper.text(20, y - 1.2, mark)
        paper.set_font("Helvetica", size=8)
        paper.text(21.1, y, note)
    paper.add_page()
    paper.paragraph("die Stimme des Vorstands handeln.")
    doc = read_one("a.pdf", paper.data)
    assert "Der Verein darf nicht ohne die Stimme des Vorstands handeln." in doc.text
    assert "\n\n¹ Vereine der Stadt haben einen Sitz.\n\n² Alle stehen im Register.\n\nDer Verein darf" in doc.text
    first, second = (doc.text[page.start : page.end] for page in doc.pages)
    assert ("Register." in first, second.startswith("die Stimme")) == (True, True)


def test_two_columns_are_read_one_after_the_other(read_one):
    paper = Paper()
    paper.add_page()
    for at, side in ((10, "left"), (110, "right")):
        paper.set_xy(at, 30)
        for part in ("one", "two"):
            paper.set_x(at)
            paper.multi_cell(90, 5, f"The {side} column, part {part}. " + "It says what it has to say. " * 9, align="J")
    text = " ".join(read_one("a.pdf", paper.data).text.split())
    places = [text.index(f"The {side} column, part {part}.") for side in ("left", "right") for part in ("one", "two")]
    assert places == sorted(places)


def test_lines_of_a_column_are_not_joined_by_a_larger_heading_beside_them(read_one):
    paper = Paper()
    paper.add_page()
    for row, at in itertools.product(range(12), (10, 110)):
        large = (row, at) == (6, 10)
        paper.set_font("Helvetica", size=14 if large else 10)
        paper.set_xy(at, 30 + 4 * row + 1.6 * large)
        paper.cell(90, 4, "A heading" if large else f"This is the line {row} at {at} and it is full of words.")
    text = read_one("a.pdf", paper.data).text
    assert "line 6 at 110 and it is full of words. This is the line 7 at 110" in text


def test_columns_that_hold_tables_themselves_are_read_one_after_the_other(read_one):
    paper = Paper()
    paper.add_page()
    for at, side, step in ((10, "left", 6), (110, "right", 6.5)):
        for row in range(30):
            paper.set_xy(at, 30 + row * step)
            paper.cell(30, 5, f"{side}-{row}")
            paper.cell(30, 5, f"what {side} key {row} does")
    text = read_one("a.pdf", paper.data).text
    assert "| left-7 | what left key 7 does |" in text
    assert "| right-7 | what right key 7 does |" in text
    assert text.index("left-29") < text.index("right-0")


@pytest.mark.parametrize("borders", ["ALL", "NONE"])
def test_tables_become_rows_with_and_without_lines_around_them(read_one, borders):
    paper = Paper()
    paper.add_page()
    rows = [("Alarm", "Device", "Action"), ("1", "DH-110", "Stop the pump"), ("2", "DH|120", "Open valve 3")]
    paper.paragraph("What to do at each alarm of the devices in the hall.")
    with paper.table(borders_layout=borders, first_row_as_headings=False) as table:
        for row in rows:
            table.row(row)
    assert read_one("a.pdf", paper.data).text.split("\n")[2:] == [
        "| Alarm | Device | Action |", "| --- | --- | --- |", "| 1 | DH-110 | Stop the pump |",
        "| 2 | DH\\|120 | Open valve 3 |",
    ]  # fmt: skip


def test_tables_with_lines_between_their_cells_alone_are_whole_and_read_by_columns(read_one):
    paper = Paper()
    paper.add_page()
    for at, side, step in ((10, "left", 18), (110, "right", 19)):
        for row in range(10):
            top = 30 + row * step + row // 5 * 20
            paper.text(at + 1, top + 5, f"{side}-{row}")
            paper.text(at + 31, top + 4, "prints the in-")
            paper.text(at + 31, top + 8, "terval --not-")
            paper.text(at + 31, top + 12, "ed at https:")
            paper.text(at + 31, top + 16, "//a.example")
            paper.rect(at + 30, top, 0, step)
            if row % 5:
                paper.rect(at, top, 80, 0)
    rows = [line for line in read_one("a.pdf", paper.data).text.split("\n") if line.strip("|- ")]
    cells = "prints the interval --not-ed at https://a.example"
    assert rows == [f"| {side}-{row} | {cells} |" for side in ("left", "right") for row in range(10)]


def test_a_heading_at_the_top_of_pages_that_has_another_number_on_each_is_no_running_head(read_one):
    paper = Paper("Release notes of the pump")
    for number in range(1, 7):
        paper.add_page()
        paper.line(f"{number} Release 0.2.{9 - number}", size=14, style="B", height=7)
        paper.paragraph(FILLER * 2)
    text = read_one("a.pdf", paper.data).text
    assert [line for line in text.split("\n") if "#" in line] == [f"# {n} Release 0.2.{9 - n}" for n in range(1, 7)]
    assert "notes of the pump" not in text


def test_rows_without_lines_between_them_are_told_by_a_column_of_figures(read_one):
    paper = Paper()
    paper.add_page()
    for top, height, lines in (
        (40, 8, [("Month", "Files")]),
        (48, 40, [("Dec", "87"), ("Jan", "1,390"), ("Feb", "73")]),
    ):
        for at, (month, files) in enumerate(lines):
            paper.text(21, top + 5 + 9 * at, month)
            paper.text(51, top + 5 + 9 * at, files)
        paper.rect(20, top, 30, height)
        paper.rect(50, top, 30, height)
    paper.text(21, 62 - 5, "of 1988")
    rows = read_one("a.pdf", paper.data).text.split("\n")
    assert rows == ["| Month | Files |", "| --- | --- |", "| Dec of 1988 | 87 |", "| Jan | 1,390 |", "| Feb | 73 |"]


def test_text_that_goes_on_beyond_its_cell_is_not_glued_to_that_of_the_next(read_one):
    paper = Paper()
    paper.add_page()
    for at, cells in enumerate([("command", "what it does"), ("git-buildpackage", "automates it")]):
        for left, text in zip((20, 44), cells, strict=True):
            paper.rect(left, 40 + 8 * at, 24 if left == 20 else 60, 8)
            paper.text(left + 1, 45 + 8 * at, text)
    expected = "| command | what it does |\n| --- | --- |\n| git-buildpackage | automates it |"
    assert read_one("a.pdf", paper.data).text == expected


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["The regu-", "lation applies."], "The regulation applies."),
        (["A well-known thing is a well-", "known one."], "A well-known thing is a well-known one."),
        (["It begins in 2019-", "2020 and ends."], "It begins in 2019-2020 and ends."),
        (["Alle Alten-", "und Kindersitze."], "Alle Alten- und Kindersitze."),
        (["Ein Drag-", "and-Drop, der thous-", "and thousand mal."], "Ein Drag-and-Drop, der thousand thousand mal."),
    ],
)
def test_a_hyphen_goes_only_where_a_word_was_broken(read_one, lines, text):
    paper = Paper()
    paper.add_page()
    paper.line("\n".join(lines))
    assert read_one("a.pdf", paper.data).text == text


@pytest.mark.parametrize("below", ["2.500 € im Jahr.", "7. Tag vor der Wahl."])
def test_a_number_with_which_a_sentence_goes_on_opens_no_item(read_one, below):
    paper = Paper()
    paper.add_page()
    above = f"Die Hilfe {'der Gemeinde an Vereine ' * 3}beträgt am"
    paper.line(f"{above}\n{below}".replace("€", "Euro"))
    assert read_one("a.pdf", paper.data).text == f"{above} {below}".replace("€", "Euro")


def test_the_large_number_of_a_step_makes_it_no_heading(read_one):
    paper = Paper()
    paper.add_page()
    for number, y in ((1, 40), (2, 60)):
        paper.set_font("Helvetica", size=20)
        paper.text(20, y, str(number))
        paper.set_font("Helvetica", size=10)
        paper.text(26, y, "Let the curd drain in a fine sieve for a good while and keep it in the")
        paper.text(26, y + 4.5, "fridge for 4 hours.")
    step = "Let the curd drain in a fine sieve for a good while and keep it in the fridge for 4 hours."
    assert read_one("a.pdf", paper.data).text == f"1 {step}\n\n2 {step}"


def test_text_in_a_box_is_no_table(read_one):
    paper = Paper()
    paper.add_page()
    for at in range(5):
        paper.rect(10, 40 + 5 * at, 4, 5)
        paper.rect(14, 40 + 5 * at, 180, 5)
        paper.text(15, 43.5 + 5 * at, f"Users are responsible for the security of data number {at} and of all that is")
    assert "|" not in read_one("a.pdf", paper.data).text


def test_an_accent_that_is_drawn_over_its_letter_belongs_to_it(read_one):
    paper = Paper()
    paper.add_page()
    for before, text in (("", "It isn´t `a` d"), ("It isn´t `a` d", "´"), ("It isn´t `a` d", "elai")):
        paper.text(20 + paper.get_string_width(before), 30, text)
    for before, text in (
        ("", "Nur fur"),
        ("Nur f", "¨"),
        ("Nur fur ", "uns"),
    ):  # drawn behind the word that it belongs to
        paper.text(20 + paper.get_string_width(before), 40, text)
    assert read_one("a.pdf", paper.data).text == "It isn´t `a` délai\n\nNur für uns"


def test_what_looks_like_markup_is_none_and_code_is_fenced(read_one):
    paper = Paper()
    paper.add_page()
    paper.paragraph("# 1 of 20")
    paper.paragraph("A sentence of plain words before the code, so that code is not all there is:")
    paper.set_font("Courier", size=10)
    paper.multi_cell(0, 5, "if x:\n    run()", align="L", new_x="LMARGIN", new_y="NEXT")
    text = read_one("a.pdf", paper.data).text
    assert text.startswith("\\# 1 of 20\n\n")
    assert text.endswith("```\nif x:\n    run()\n```")


@pytest.mark.parametrize(
    ("given", "title"),
    [("La ley", "La ley"), ("draft.docx", "a"), ("untitled", "a"), ("Microsoft Word - x", "a"), ("x_v2_final", "a")],
)
def test_the_title_of_the_file_properties_unless_it_is_a_file_name(read_one, given, title):
    doc = read_one("a.pdf", pdf_bytes(title=given))
    assert (doc.title, len(doc.metadata["created"])) == (title, len("2026-01-31"))


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ("Revised in 2024", "Revised in 2024: By-laws: Town of Hill"), ("By-Laws", "By-laws: Town of Hill"),
        ("The by-laws of the town of Hill", "The by-laws of the town of Hill"),
    ],
)  # fmt: skip
def test_what_a_title_page_says_in_large_letters_is_in_the_title(read_one, given, title):
    paper = Paper()
    paper.set_title(given)
    paper.add_page()
    for text, size in (("By-laws", 20), ("Town of Hill", 20), ("Article 1", 20), ("The board", 14)):
        paper.line(text, size=size, height=12)
        paper.ln(8)
    paper.paragraph(FILLER * 3)
    assert read_one("a.pdf", paper.data).title == title


def test_broken_files_are_reported_and_never_escape_as_another_error(read):
    data = pdf_bytes()
    for broken in (b"%PDF-1.4\n", b"no pdf at all", data[:60]):
        [found] = read("a.pdf", broken)
        assert found.reason == "is no readable PDF; export it again"
    assert any(isinstance(found, SkippedSource) for found in read("a.pdf", data[:-200]))
    for at in range(20, len(data), 97):
        for found in read("a.pdf", data[:at] + b"\xff<<[" + data[at + 4 :]):
            assert isinstance(found, (SkippedSource, SourceDocument))


def test_passwords_scans_and_a_missing_reader_are_told(reason, read_one, monkeypatch):
    assert reason("a.pdf", pdf_bytes(password="secret")) == "is locked by a password; save a copy without one"
    assert "Obligatoria" in read_one("a.pdf", pdf_bytes(password="")).text
    assert "OCR" in reason("a.pdf", pdf_bytes(([], [])))
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    assert reason("a.pdf", pdf_bytes()) == "needs a PDF reader: pip install 'agentic-retriever[pdf]'"


def test_a_broken_page_is_reported_and_the_others_go_in(read, monkeypatch):
    load = pypdfium2.raw.FPDF_LoadPage
    monkeypatch.setattr(pypdfium2.raw, "FPDF_LoadPage", lambda doc, at: load(doc, at) if at else None)
    skipped, doc = read("a.pdf", pdf_bytes())
    assert isinstance(skipped, SkippedSource)
    assert skipped.source.endswith("a.pdf#page=1")
    assert "Dos o cuatro" in doc.text


def test_a_document_that_takes_too_long_or_has_too_many_pages_is_refused(tmp_path, reason, monkeypatch):
    (tmp_path / "a.pdf").write_bytes(pdf_bytes())
    file = locate(tmp_path / "a.pdf", root=tmp_path, max_bytes=10**6)
    with pytest.raises(SourceError, match="took more than 120 s up to page 1 of 3"):
        list(pdf.read_pdf(file, clock=itertools.count(0, 200).__next__))
    monkeypatch.setattr(pdf, "MAX_PAGES", 2)
    assert reason("a.pdf", pdf_bytes()) == "has 3 pages, at most 2 are read; split it"


@pytest.fixture
def scan(tmp_path):
    """A page that is one image, and a page of text."""
    image = pytest.importorskip("PIL.Image").new("L", (300, 400), 128)
    paper = Paper()
    paper.add_page()
    paper.image(image, x=0, y=0, w=200)
    paper.add_page()
    paper.paragraph("This page has words.")
    return paper.data


def test_a_scanned_page_is_recognised_where_tesseract_is_and_else_reported(read, scan, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytesseract", None)
    skipped, doc = read("a.pdf", scan)
    assert skipped.source.endswith("#page=1")
    assert "agentic-retriever[ocr]" in skipped.reason
    assert doc.text == "This page has words."
    fake = SimpleNamespace(
        get_languages=lambda: ["eng", "osd", "spa"],
        image_to_string=lambda image, lang, timeout: f"Read from {image.size[0] > 1_000}\nas {lang}.\n\nMore.",
        TesseractNotFoundError=type("NotFound", (OSError,), {}),
        TesseractError=type("Failed", (RuntimeError,), {}),
    )
    monkeypatch.setitem(sys.modules, "pytesseract", fake)
    [doc] = read("a.pdf", scan)
    assert doc.text == "Read from True as eng+spa.\n\nMore.\n\nThis page has words."
    assert [page.start for page in doc.pages] == [0, doc.text.index("This page")]


def test_a_name_in_bold_code_that_stands_alone_is_a_heading(read_one):
    paper, text = Paper(), "This is what stands below it, in the letters of the text and over all of the line."
    paper.add_page()
    for at, name in enumerate(("LIMIT", "max_size", "run all")):
        for below, (font, style, line) in enumerate(
            (("Courier", "B", name), ("Helvetica", "", text), ("Courier", "", f"export {name}=1"))
        ):
            paper.set_font(font, style, 10)
            paper.text(20, 30 + 45 * at + 15 * below, line)
    found = read_one("a.pdf", paper.data).text.split("\n")
    assert [line for line in found if line[:1] == "#"] == ["# LIMIT", "# max_size"]
    assert found.count("run all") == found.count("export LIMIT=1") == 1  # in a block of code


def test_an_option_in_smaller_letters_goes_on_in_the_line_below(read_one):
    paper = Paper()
    paper.add_page()
    for at, (option, lines) in enumerate(
        {"--seed <n>": ("Set the seed, which", "makes all equal."), "-q": ("Be quiet.",)}.items()
    ):
        paper.set_font("Courier", size=8)
        paper.text(20, 30 + 20 * at, option)
        paper.set_font("Helvetica", size=10)
        for below, line in enumerate(lines):
            paper.text(60, 30 + 20 * at + 5 * below, line)
    assert "Set the seed, which makes all equal." in read_one("a.pdf", paper.data).text


def test_code_within_a_bold_heading_leaves_it_one(read_one):
    paper = Paper()
    paper.add_page()
    for at, (font, style, text) in enumerate([("Helvetica", "B", "Why is "), ("Courier", "", "ifelse"),
                                              ("Helvetica", "B", " not as I expect?")]):  # fmt: skip
        paper.set_font(font, style, 10)
        paper.text((20, 32.5, 46)[at], 30, text)
    for line in range(3):
        paper.set_font("Helvetica", size=10)
        paper.text(20, 40 + 5 * line, f"It works on {line} objects that all have the same index, as they are merged.")
    assert read_one("a.pdf", paper.data).text.startswith("# Why is ifelse not as I expect?\n")


def test_fonts_of_tex_that_name_no_letters_have_ligatures_and_quotation_marks(read_one):
    codes = b"coe\x1ecients \x10\x1cne\x11"
    font = (
        b"".join(b"/a%d 5 0 R" % code for code in set(codes)),
        b"".join(b"%d/a%d" % (code, code) for code in set(codes)),
    )
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F 4 0 R>>>>/Contents 6 0 R>>",
        b"<</Type/Font/Subtype/Type3/FontBBox[0 0 10 10]/FontMatrix[.1 0 0 .1 0 0]/FirstChar 0/LastChar 127/Widths[%s]"
        b"/CharProcs<<%s>>/Encoding<</Type/Encoding/Differences[%s]>>/Resources<<>>>>" % (b"6 " * 128, *font),
        b"<</Length 27>>stream\n6 0 0 0 5 7 d1 0 0 5 7 re f\nendstream",
        b"<</Length %d>>stream\nBT/F 12 Tf 9 700 Td<%s>Tj ET\nendstream" % (2 * len(codes) + 27, codes.hex().encode()),
    ]  # fmt: skip
    made = b"".join(b"%d 0 obj%s endobj\n" % (at, one) for at, one in enumerate(objects, 1))
    assert read_one("a.pdf", b"%PDF-1.4\n" + made + b"trailer<</Root 1 0 R>>\n%%EOF").text == "coefficients “fine”"
