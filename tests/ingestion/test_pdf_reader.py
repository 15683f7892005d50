from __future__ import annotations

import io
import sys
from collections.abc import Callable

import fpdf
import pypdf
import pytest

from agentic_retriever.ingestion import ChunkSettings, SkippedSource, SourceDocument, chunk_document

Read = Callable[..., list[SourceDocument | SkippedSource]]
PAGES = (
    ["6.2.1. Presencia", "Obligatoria en los vehículos de motor."],
    [],
    ["6.2.2. Número", "Dos o cuatro, según la categoría."],
)


def pdf_bytes(pages: tuple[list[str], ...] = PAGES, *, title: str = "") -> bytes:
    pdf = fpdf.FPDF()
    pdf.set_title(title)
    pdf.set_font("Helvetica", size=12)
    for lines in pages:
        pdf.add_page()
        for line in lines:
            pdf.cell(0, 10, line, new_x="LMARGIN", new_y="NEXT")
    return bytes(pdf.output())


def encrypted(data: bytes, password: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(data))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def reason(read: Read, data: bytes) -> str:
    (skipped,) = read("a.pdf", data)
    assert isinstance(skipped, SkippedSource), skipped
    return skipped.reason


def test_pages_and_their_spans(read: Read) -> None:
    (doc,) = read("ley_de_luces.pdf", pdf_bytes())
    assert isinstance(doc, SourceDocument)
    assert (doc.kind, doc.title, doc.doc_id) == ("pdf", "ley de luces", "ley_de_luces.pdf")
    assert [page.number for page in doc.pages] == [1, 2, 3]
    texts = [doc.text[page.start : page.end] for page in doc.pages]
    assert "Obligatoria en los vehículos" in texts[0]
    assert texts[1] == ""
    assert "Dos o cuatro" in texts[2]
    assert doc.text == "\n\n".join(texts)


def test_nodes_know_page_and_section(read: Read) -> None:
    (doc,) = read("a.pdf", pdf_bytes())
    assert isinstance(doc, SourceDocument)
    nodes = chunk_document(doc, ChunkSettings())
    assert [(node.metadata["page"], node.metadata["section_number"]) for node in nodes] == [(1, "6.2.1"), (3, "6.2.2")]
    assert all(node.text == doc.text[node.start_char_idx : node.end_char_idx] for node in nodes)


@pytest.mark.parametrize(("given", "title"), [("La ley", "La ley"), ("draft.docx", "a"), ("untitled", "a")])
def test_the_title_of_the_file_properties_unless_it_is_a_file_name(read: Read, given: str, title: str) -> None:
    (doc,) = read("a.pdf", pdf_bytes(title=given))
    assert isinstance(doc, SourceDocument)
    assert doc.title == title


def test_broken_files_are_reported(read: Read) -> None:
    data = pdf_bytes()
    for broken in (b"%PDF-1.4\n", b"no pdf at all", data[:60], data[: len(data) // 2]):
        for found in read("a.pdf", broken):
            assert isinstance(found, SkippedSource)
            assert "PDF" in found.reason or "no text" in found.reason


def test_damaged_bytes_never_escape_as_another_error(read: Read) -> None:
    data = pdf_bytes()
    for at in range(20, len(data), 97):
        for found in read("a.pdf", data[:at] + b"\xff<<[" + data[at + 4 :]):
            assert isinstance(found, (SkippedSource, SourceDocument))


def test_a_password_is_reported(read: Read) -> None:
    assert reason(read, encrypted(pdf_bytes(), "secret")) == "is locked by a password; save a copy without one"


def test_an_empty_password_is_no_hindrance(read: Read) -> None:
    (doc,) = read("a.pdf", encrypted(pdf_bytes(), ""))
    assert isinstance(doc, SourceDocument)
    assert "Obligatoria" in doc.text


def test_a_scan_is_reported(read: Read) -> None:
    assert "OCR" in reason(read, pdf_bytes(([], [])))


def test_a_broken_page_is_reported_and_the_others_go_in(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    original = pypdf.PageObject.extract_text

    def extract(page: pypdf.PageObject) -> str:
        if page.page_number == 0:
            raise KeyError("/Font")
        return original(page)

    monkeypatch.setattr(pypdf.PageObject, "extract_text", extract)
    skipped, doc = read("a.pdf", pdf_bytes())
    assert isinstance(skipped, SkippedSource)
    assert skipped.source.endswith("a.pdf#page=1")
    assert isinstance(doc, SourceDocument)
    assert "Dos o cuatro" in doc.text


def test_without_pypdf_the_extra_is_named(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    assert reason(read, pdf_bytes()) == "needs a PDF reader: pip install 'agentic-retriever[pdf]'"
