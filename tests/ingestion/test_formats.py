"""HTML, PDF and JSON lines."""

from __future__ import annotations

import io
import json
import sys

import fpdf
import pypdf
import pytest

from agentic_retriever.ingestion import ChunkSettings, SkippedSource, SourceDocument, chunk_document

PAGES = (
    ["6.2.1. Presencia", "Obligatoria en los vehículos de motor."],
    [],
    ["6.2.2. Número", "Dos o cuatro, según la categoría."],
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<p>one\n  two</p><p>three</p>", "one two\n\nthree"),
        ("a<br>b", "a\nb"),
        ("<h2>Some <b>title</b></h2>text", "## Some title\n\ntext"),
        ("<h2>Two<br>lines</h2>text", "## Two lines\n\ntext"),
        ("<ul><li>a</li><li>b <i>c</i></li></ul><p>d</p>", "- a\n- b c\n\nd"),
        ("<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>", "- a\n  - b\n- c"),
        ("<ul><li><p>a</p></li></ul>", "- a"),
        ("<table><tr><th>x</th><th>y|z</th></tr><tr><td>1</td><td>2</td></tr></table>", "| x | y\\|z |\n| 1 | 2 |"),
        ("<table><caption>C</caption><tr><td>1</td><td>2</td></tr></table>", "C\n\n| 1 | 2 |"),
        ("<table><tr><td><p>layout</p><p>only</p></td></tr></table>", "layout\n\nonly"),
        ("<pre>x = 1\n\n  y</pre>", "```\nx = 1\n\n  y\n```"),
        ("<div>a<div>b</div>c</div>", "a\n\nb\n\nc"),
        ("a<script>x()</script><style>p{}</style><nav>menu</nav><!-- c --><p hidden>h</p>b", "ab"),
        ("caf&eacute; &lt;b&gt; &amp; ก", "café <b> & ก"),
        ("<p>unclosed <b>bold <p>next", "unclosed bold\n\nnext"),
        ("<p>a<span>b</span> c</p>", "ab c"),
    ],
)
def test_html_structure(read_one, body, expected):
    assert read_one("a.html", f"<html><body>{body}</body></html>").text == expected


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title>Page</title><h1>One</h1>x", "One"),
        ("<title> Page\n two </title><h1>One</h1><h1>Two</h1>x", "Page two"),
        ("<title>Page</title>x", "Page"),
        ("x", "my file"),
    ],
)
def test_html_titles(read_one, html, title):
    doc = read_one("my_file.html", html)
    assert doc.title == title


@pytest.mark.parametrize(
    "data",
    [
        "<p>señal</p>".encode(),
        b"\xef\xbb\xbf" + "<p>señal</p>".encode(),
        '<meta charset="iso-8859-1"><p>señal</p>'.encode("latin-1"),
        "<p>señal, una palabra entre otras más</p>".encode("cp1252"),
        "<p>señal</p>".encode("utf-16"),
        '<meta charset="no-such-thing"><p>señal, una palabra entre otras más</p>'.encode("cp1252"),
    ],
)
def test_html_encodings(read_one, data):
    doc = read_one("a.htm", data)
    assert doc.text.startswith("señal")


def test_a_declared_thai_encoding_is_honoured(read_one):
    doc = read_one(
        "a.html", '<meta http-equiv="Content-Type" content="text/html; charset=tis-620"><p>โฉนด</p>'.encode("tis-620")
    )
    assert doc.text == "โฉนด"


@pytest.mark.parametrize("html", ["<html><body></body></html>", "<script>x</script>", "<!-- only -->"])
def test_a_page_without_text_is_reported(reason, html):
    assert reason("a.html", html) == "holds no text"


def test_malformed_and_deeply_nested_pages(read_one, read):
    assert read_one("a.html", "<div>" * 3000 + "deep").text == "deep"
    (skipped,) = read("a.html", "<![if foo")
    assert isinstance(skipped, (SkippedSource, SourceDocument))


def test_a_page_is_chunked_by_its_headings(read_one):
    html = (
        "<h1>Guide</h1><p>Intro.</p><h2>1.2 Limits</h2>"
        "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table><h2>Code</h2><pre># no heading</pre>"
    )
    doc = read_one("a.html", html)
    nodes = chunk_document(doc, ChunkSettings())
    assert [(node.metadata.get("section"), node.metadata["chunk_type"]) for node in nodes] == [
        (None, "text"),
        ("1.2 Limits", "table"),
        ("Code", "code"),
    ]


def pdf_bytes(pages=PAGES, *, title=""):
    pdf = fpdf.FPDF()
    pdf.set_title(title)
    pdf.set_font("Helvetica", size=12)
    for lines in pages:
        pdf.add_page()
        for line in lines:
            pdf.cell(0, 10, line, new_x="LMARGIN", new_y="NEXT")
    return bytes(pdf.output())


def encrypted(data, password):
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(data))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_pages_and_their_spans(read_one):
    doc = read_one("ley_de_luces.pdf", pdf_bytes())
    assert (doc.kind, doc.title, doc.doc_id) == ("pdf", "ley de luces", "ley_de_luces.pdf")
    assert [page.number for page in doc.pages] == [1, 2, 3]
    texts = [doc.text[page.start : page.end] for page in doc.pages]
    assert "Obligatoria en los vehículos" in texts[0]
    assert texts[1] == ""
    assert "Dos o cuatro" in texts[2]
    assert doc.text == "\n\n".join(texts)


def test_nodes_know_page_and_section(read_one):
    doc = read_one("a.pdf", pdf_bytes())
    nodes = chunk_document(doc, ChunkSettings())
    assert [(node.metadata["page"], node.metadata["section_number"]) for node in nodes] == [(1, "6.2.1"), (3, "6.2.2")]
    assert all(node.text == doc.text[node.start_char_idx : node.end_char_idx] for node in nodes)


@pytest.mark.parametrize(("given", "title"), [("La ley", "La ley"), ("draft.docx", "a"), ("untitled", "a")])
def test_the_title_of_the_file_properties_unless_it_is_a_file_name(read_one, given, title):
    doc = read_one("a.pdf", pdf_bytes(title=given))
    assert doc.title == title


def test_broken_files_are_reported(read):
    data = pdf_bytes()
    for broken in (b"%PDF-1.4\n", b"no pdf at all", data[:60], data[: len(data) // 2]):
        for found in read("a.pdf", broken):
            assert isinstance(found, SkippedSource)
            assert "PDF" in found.reason or "no text" in found.reason


def test_damaged_bytes_never_escape_as_another_error(read):
    data = pdf_bytes()
    for at in range(20, len(data), 97):
        for found in read("a.pdf", data[:at] + b"\xff<<[" + data[at + 4 :]):
            assert isinstance(found, (SkippedSource, SourceDocument))


def test_a_password_is_reported(reason):
    assert reason("a.pdf", encrypted(pdf_bytes(), "secret")) == "is locked by a password; save a copy without one"


def test_an_empty_password_is_no_hindrance(read_one):
    doc = read_one("a.pdf", encrypted(pdf_bytes(), ""))
    assert "Obligatoria" in doc.text


def test_a_scan_is_reported(reason):
    assert "OCR" in reason("a.pdf", pdf_bytes(([], [])))


def test_a_broken_page_is_reported_and_the_others_go_in(read, monkeypatch):
    original = pypdf.PageObject.extract_text

    def extract(page):
        if page.page_number == 0:
            raise KeyError("/Font")
        return original(page)

    monkeypatch.setattr(pypdf.PageObject, "extract_text", extract)
    skipped, doc = read("a.pdf", pdf_bytes())
    assert isinstance(skipped, SkippedSource)
    assert skipped.source.endswith("a.pdf#page=1")
    assert isinstance(doc, SourceDocument)
    assert "Dos o cuatro" in doc.text


def test_without_pypdf_the_extra_is_named(reason, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    assert reason("a.pdf", pdf_bytes()) == "needs a PDF reader: pip install 'agentic-retriever[pdf]'"


def line(**fields):
    return json.dumps(fields, ensure_ascii=False) + "\n"


def test_a_record_in_beir_form(read_one):
    metadata = {"year": 1958, "tags": ["x"], "who": {"name": "n"}}
    record = line(_id="7", title="T", text=" a\r\nb ", metadata=metadata, lang="en")
    doc = read_one("corpus.jsonl", record)
    assert (doc.doc_id, doc.title, doc.text, doc.kind) == ("7", "T", " a\r\nb ", "jsonl")
    assert doc.metadata == {"lang": "en", "year": 1958, "tags": ["x"], "who_name": "n"}
    assert doc.source.endswith("corpus.jsonl")


@pytest.mark.parametrize(
    ("fields", "doc_id"),
    [({"_id": 7}, "7"), ({"id": "x"}, "x"), ({"_id": "a", "id": "b"}, "a"), ({"_id": None, "id": 0}, "0")],
)
def test_ids_of_records(read_one, fields, doc_id):
    assert read_one("corpus.jsonl", line(text="t", **fields)).doc_id == doc_id


def test_a_record_with_only_a_title_takes_it_as_text(read_one):
    assert read_one("corpus.jsonl", line(_id="1", title="Only", text="")).text == "Only"
    assert read_one("corpus.jsonl", line(_id="1", title="Only")).text == "Only"


def test_metadata_wins_over_other_fields_and_may_bring_the_title(read_one):
    doc = read_one("corpus.jsonl", line(_id="1", text="t", year=1, metadata={"year": 2, "title": "M"}))
    assert doc.metadata == {"year": 2, "title": "M"}
    assert doc.title == "M"


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("{broken", "not valid JSON"),
        ("[1, 2]", "JSON list, not an object"),
        ("7", "JSON int"),
        (line(text="no id").strip(), "no _id"),
        (line(_id="", text="t").strip(), "no _id"),
        (line(_id=True, text="t").strip(), "no _id"),
        (line(_id="x", text=5).strip(), "'text' is a int"),
        (line(_id="x", text="t", title=["a"]).strip(), "'title' is a list"),
        (line(_id="x", text="t", metadata=[1]).strip(), "is a list, not an object"),
        (line(_id="x", text="t", doc_id="y").strip(), "'doc_id' is reserved"),
        (line(_id="a", text="again").strip(), "'a' is that of line 1 already"),
        ('{"_id": "x", "text": "t", "n": NaN}', "NaN is no JSON number"),
        ('{"_id": "x", "n": ' + "[" * 100_000, "not valid JSON"),
    ],
)
def test_a_bad_line_is_reported_with_its_number_and_the_rest_goes_in(read, bad, expected):
    found = read("corpus.jsonl", f"{line(_id='a', text='t')}\n{bad}\n{line(_id='b', text='t')}")
    assert [doc.doc_id for doc in found if isinstance(doc, SourceDocument)] == ["a", "b"]
    (skipped,) = (item for item in found if isinstance(item, SkippedSource))
    assert skipped.source.endswith("corpus.jsonl:3")
    assert expected in skipped.reason


def test_lines_that_are_not_utf8_or_binary(read):
    found = read("c.jsonl", b'{"_id": "\xe9", "text": "t"}\n{"_id": "1\0"}\n' + line(_id="b", text="t").encode())
    assert [type(item) for item in found] == [SkippedSource, SkippedSource, SourceDocument]
    assert "not UTF-8" in found[0].reason
    assert "NUL" in found[1].reason


def test_an_overlong_line_is_one_report(read):
    content = line(_id="a", text="t") + line(_id="big", text="x" * 1000) + line(_id="b", text="t")
    found = read("c.jsonl", content, max_bytes=100)
    assert [getattr(item, "doc_id", "-") for item in found] == ["a", "-", "b"]
    assert isinstance(found[1], SkippedSource)
    assert found[1].source.endswith(":2")
    assert "larger than" in found[1].reason
    assert len(read("d.jsonl", line(_id="big", text="x" * 1000).strip(), max_bytes=100)) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_jsonl_encodings(read_one, encoding):
    doc = read_one("c.jsonl", line(_id="ก", text="โฉนด").encode(encoding))
    assert (doc.doc_id, doc.text) == ("ก", "โฉนด")


def test_lone_surrogates_are_replaced_one_for_one(read_one):
    doc = read_one("c.jsonl", '{"_id": "1", "text": "a\\ud800b\\u0000c"}')
    assert doc.text == "a\ufffdb\ufffdc"


def test_a_file_of_blank_lines_is_reported(reason):
    assert reason("c.jsonl", "\n  \n") == "holds only blank lines"


def test_a_record_without_text_or_title_is_a_document_without_text(read_one):
    doc = read_one("corpus.jsonl", line(_id="x", text="", title=" "))
    assert (doc.doc_id, doc.text, chunk_document(doc, ChunkSettings())) == ("x", "", [])
