import io
import sys
import zipfile
from datetime import datetime

import openpyxl
import pptx
import pytest

from agentic_retriever.ingestion import SourceDocument

_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"


SINCE = datetime(2024, 5, 1)  # noqa: DTZ001 - a sheet knows no zones


def zipped(entries):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in entries.items():
            archive.writestr(name, text)
    return stream.getvalue()


def saved(document):
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def word(body, head="", **entries):
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    types = f'<Types xmlns="{_PACKAGE}/content-types"><Override PartName="/d.xml" ContentType="{kind}"/></Types>'
    link = f'<Relationship Id="r" Type="{_OFFICE}" Target="d.xml"/>'
    parts = {
        "[Content_Types].xml": types,
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{link}</Relationships>',
        "d.xml": f'{head}<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>',
    }
    return zipped(parts | entries)


def paragraph(text, style="x"):
    return f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>'


def cells(*texts):
    return f"<w:tr>{''.join(f'<w:tc>{paragraph(text)}</w:tc>' for text in texts)}</w:tr>"


def opendocument(kind, body, styles="", **entries):
    names = "".join(f'xmlns:{name}="urn:{name}" ' for name in ("office", "text", "table", "style", "draw", "dc"))
    whole = f"<office:automatic-styles>{styles}</office:automatic-styles><office:body><office:{kind}>{body}"
    content = f"<office:c {names}>{whole}</office:{kind}></office:body></office:c>"
    return zipped({"META-INF/manifest.xml": "<m/>", "content.xml": content} | entries)


def book(pages, head="", folder=""):
    items = "".join(
        f'<item id="p{at}{mark}" href="a%20{at}.xhtml{mark}"/>' for at in range(len(pages)) for mark in ("", "#s")
    )
    order = "".join(f'<itemref idref="p{at}"/><itemref idref="p{at}#s"/>' for at in range(len(pages)))
    parts = f"<metadata>{head}</metadata><manifest>{items}</manifest><spine>{order}</spine>"
    package = f'<package xmlns:dc="dc">{parts}</package>'
    entries = {"META-INF/container.xml": '<c><rootfile full-path="O/c.opf"/></c>', "O/c.opf": package}
    entries |= {f"O/a {at}.xhtml": page for at, page in enumerate(pages)}
    return zipped({folder + name: text for name, text in entries.items()})


def test_word_headings_and_tables_become_markdown_and_its_properties_metadata(read_one):
    named = "<dc:title>Pump &amp; alarm</dc:title><dc:creator>Ann</dc:creator><created>2024-05-01</created>"
    core = f'<p xmlns:dc="dc">{named}</p>'
    body = (
        paragraph("Alarms", "Heading1")
        + paragraph("It rings.")
        + f"<w:tbl>{cells('code', 'limit')}{cells('E7', '80')}</w:tbl>"
    )
    doc = read_one("a.docx", word(body, **{"docProps/core.xml": core}))
    assert doc.text == "# Alarms\n\nIt rings.\n\n| code | limit |\n| --- | --- |\n| E7 | 80 |"
    assert (doc.title, doc.kind) == ("Pump & alarm", "docx")
    assert doc.metadata == {"title": "Pump & alarm", "author": "Ann", "created": "2024-05-01"}
    assert read_one("b.docx", word(body)).title == "Alarms"


def test_slides_become_sections_with_their_tables_and_notes(read_one):
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Pumps"
    slide.placeholders[1].text = "First\nSecond"
    table = slide.shapes.add_table(2, 2, 0, 0, 9, 9).table
    table.cell(0, 0).text, table.cell(1, 1).text = "k", "v"
    slide.notes_slide.notes_text_frame.text = "Say hello."
    deck.core_properties.title = "Deck"
    doc = read_one("a.pptx", saved(deck))
    assert doc.text == "## Pumps\n\n\n- First\n- Second\n\n| k |  |\n| --- | --- |\n|  | v |\n\nSay hello."
    assert doc.title == "Deck"


def test_sheets_become_tables_without_what_is_empty(read_one):
    sheets = openpyxl.Workbook()
    for row in (["code", "limit", "since"], ["E7", 80.1 + 0.2, SINCE], [None], ["E|8", True]):
        sheets.active.append(row)
    sheets.create_sheet("Empty")
    sheets.properties.title = "Alarm book"
    doc = read_one("a.xlsx", saved(sheets))
    head = "## Sheet\n\n| code | limit | since |\n| --- | --- | --- |\n"
    assert doc.text == head + "| E7 | 80.3 | 2024-05-01 |\n| E\\|8 | True |  |"
    assert doc.title == "Alarm book"


def test_text_of_opendocument_becomes_markdown(read_one):
    styles = '<style:style style:name="P1" style:parent-style-name="Title"/><style:style style:name="P2"/>'
    note = "<text:note-citation>1</text:note-citation><text:note-body><text:p>Of 2019.</text:p></text:note-body>"
    row = "<table:table-row>{}</table:table-row>"
    cell = "<table:table-cell><text:p>{}</text:p></table:table-cell>"
    body = (
        "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        '<text:p text:style-name="P1">Pump  manual</text:p><text:table-of-content><text:p>Oil 1</text:p>'
        '</text:table-of-content><text:h text:outline-level="2">Oil<text:line-break/>change</text:h>'
        f'<text:p text:style-name="P2">Every<text:s/><text:span>year</text:span><text:note>{note}</text:note> or'
        "<text:line-break/>later<office:annotation><text:p>Really?</text:p></office:annotation>.</text:p>"
        "<text:list><text:list-item><text:p>one</text:p><text:list><text:list-item><text:p>sub</text:p>"
        "</text:list-item></text:list></text:list-item></text:list>"
        f"<table:table><table:table-header-rows>{row.format(cell.format('Part') + cell.format('kg'))}"
        f"</table:table-header-rows>{row.format(cell.format('Body') + cell.format('a|b'))}</table:table>"
    )
    meta = '<m xmlns:dc="d"><dc:title>Pump</dc:title><dc:creator>Al</dc:creator><dc:date>2020</dc:date></m>'
    doc = read_one("a.odt", opendocument("text", body, styles, **{"meta.xml": meta}))
    assert doc.text == (
        "# Pump manual\n\n## Oil change\n\nEvery year (Of 2019.) or later.\n\n- one\n\n  - sub\n\n"
        "| Part | kg |\n| --- | --- |\n| Body | a\\|b |"
    )
    assert (doc.title, doc.kind, doc.metadata) == ("Pump", "odt", {"title": "Pump", "author": "Al", "modified": "2020"})


def test_sheets_and_slides_of_opendocument_become_sections(read_one):
    cell = "<table:table-cell{}><text:p>{}</text:p></table:table-cell>"
    rows = [
        cell.format("", "Name") + cell.format("", "2023") + cell.format("", "2024"),
        cell.format("", "A") + cell.format(' table:number-columns-repeated="2"', "1,200 €"),
        '<table:table-cell table:number-columns-repeated="16384"/>' * 2,
        cell.format("", "B") + "<table:table-cell/>" + cell.format("", "7<text:span>.5</text:span></text:p><text:p>kg"),
    ]
    table = "".join(f'<table:table-row table:number-rows-repeated="2">{row}</table:table-row>' for row in rows)
    body = f'<table:table table:name="Costs">{table}</table:table><table:table table:name="Empty"/>'
    text = read_one("a.ods", opendocument("spreadsheet", body)).text
    assert text == (
        "## Costs\n\n| Name | 2023 | 2024 |\n| --- | --- | --- |\n| A | 1,200 € | 1,200 € |\n| B |  | 7.5 kg |"
    )
    box = "<draw:frame{}><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>"
    body = box.format(' draw:class="title"', "Why pumps fail") + box.format("", "Dry running")
    assert read_one("a.odp", opendocument("presentation", body)).text == "## Why pumps fail\n\nDry running"


def test_a_book_is_read_in_its_order_and_a_page_once_although_its_sections_are_listed(read_one):
    head = "<dc:title>Book</dc:title><dc:date>2020-01-01</dc:date>"
    doc = read_one("a.epub", book(["<h1>One</h1>Text.", "<img/>", '<?xml version="1.0"?><h1>Two</h1>More.'], head))
    assert doc.text == "# One\n\nText.\n\n# Two\n\nMore."
    assert (doc.title, doc.metadata) == ("Book", {"title": "Book", "created": "2020-01-01"})
    assert read_one("b.epub", book(["<h1>One</h1>Text."], folder="epub/")).text == "# One\n\nText."


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", 'x;y\n1;"a\n|b"\n\n2;c\n'), ("a.tsv", 'x\ty\n1\t"a\n|b"\n\n2\tc\n')]
)
def test_separated_values_become_a_table(read_one, name, content):
    assert read_one(name, content).text == "| x | y |\n| --- | --- |\n| 1 | a \\|b |\n| 2 | c |"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("# Zones\n# of all\n\n#x\ty\tz\n1\t2\n", "Zones\nof all\n\n| x | y | z |\n| --- | --- | --- |\n| 1 | 2 |  |"),
        ("# from: a survey, 2020\nx,y\n1,2\n", "from: a survey, 2020\n\n| x | y |\n| --- | --- |\n| 1 | 2 |"),
        ("#\ty\n1\t2\n", "| # | y |\n| --- | --- |\n| 1 | 2 |"), ("# only\n# remarks\n", "only\nremarks"),
        ("  \nx,y\n1,2\n", "| x | y |\n| --- | --- |\n| 1 | 2 |"),
        ("\ty\n1\t2\n", "|  | y |\n| --- | --- |\n| 1 | 2 |"),
        ('#x,y\n1,"2, 3, 4"\n', "| x | y |\n| --- | --- |\n| 1 | 2, 3, 4 |"),
    ],
)  # fmt: skip
def test_what_is_remarked_before_a_table_is_text_or_its_head(read_one, content, text):
    assert read_one("a.tsv", content).text == text


def test_mail_has_its_subject_its_people_and_reports_what_is_attached(read, read_one):
    mail = (
        b"Subject: =?utf-8?q?Caf=C3=A9?=\nFrom: Ann <a@example.org>\nDate: Mon, 01 May 2023 10:00:00 +0200\n"
        b"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=B\n\n--B\nContent-Type: text/plain; "
        b"charset=latin-1\n\nH\xe9llo\n--B\nContent-Type: application/pdf\n"
        b'Content-Disposition: attachment; filename="r.pdf"\n\nxx\n--B\nContent-Type: image/png; name="logo.png"\n\n'
        b"xx\n--B--\n"
    )
    doc, skipped = read("a.eml", mail)
    assert skipped.source.endswith("a.eml#r.pdf")
    assert (skipped.kind, skipped.reason) == ("unread", "is attached to a mail; save it as a file to have it read")
    expected = (
        "# Café\n\nFrom: Ann <a@example.org>\nDate: 2023-05-01T10:00:00+02:00\n\nHéllo\n\nAttached, not read: r.pdf\n"
        "\nAttached, not read: logo.png"
    )
    assert (doc.title, doc.text) == ("Café", expected)
    assert read_one("b.eml", "Subject: x\nContent-Type: text/html\n\n<h1>A</h1>b").text == "# x\n\n\n# A\n\nb"


@pytest.mark.parametrize(
    ("module", "name", "content"),
    [
        ("mammoth", "a.docx", word("")),
        ("pptx", "a.pptx", saved(pptx.Presentation())),
        ("openpyxl", "a.xlsx", saved(openpyxl.Workbook())),
    ],
)
def test_without_the_extra_it_is_said_what_to_install(reason, monkeypatch, module, name, content):
    monkeypatch.setitem(sys.modules, module, None)
    assert reason(name, content) == "needs readers of office files: pip install 'agentic-retriever[office]'"


LAUGHS = "".join(f'<!ENTITY l{at} "{f"&l{at - 1};" * 10}">' for at in range(1, 12))
BOMB = word(paragraph("&l11;"), head=f'<!DOCTYPE d [<!ENTITY l0 "ha">{LAUGHS}]>')
ZIPPED = ("docx", "pptx", "xlsx", "epub", "odt", "ods", "odp")
LOCKED = zipped({"META-INF/manifest.xml": "<encryption-data/>", "content.xml": "x"})
DEEP = "<text:list><text:list-item>" * 10_000
WIDE = '<table:table-cell table:number-columns-repeated="99999999"><text:p>x</text:p></table:table-cell>'
WIDE = f"<table:table>{f'<table:table-row>{WIDE}</table:table-row>' * 50}</table:table>"
PROTECTED = zipped({"META-INF/rights.xml": "<x/>"})


@pytest.mark.parametrize(("name", "content", "said"), [
    *((f"a.{kind}", "<html><p>page", "does not hold what its suffix says") for kind in ZIPPED),
    *((f"a.{kind}", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1..", "locked by a password") for kind in ZIPPED[:3]),
    *((f"a.{kind}", word("<w:p/>")[:-30], "is cut off") for kind in ZIPPED),
    *((f"a.{kind}", zipped({"x": "y"}), f"is no readable .{kind} file (") for kind in ZIPPED),
    ("a.docx", word(paragraph("x" * 2_000_000)), "unpacks to more than 0.2 MB"),
    ("a.pptx", zipped({"x.png": "\0" * 5_000_000}), "unpacks to more than 1 MB"),
    ("a.docx", BOMB, "is no readable .docx file (ExpatError)"),
    ("a.docx", word(""), "holds no text"), ("a.xlsx", saved(openpyxl.Workbook()), "holds no text"),
    ("a.odt", LOCKED, "locked by a password"), ("a.odt", opendocument("text", "<text:p/>"), "holds no text"),
    ("a.odt", opendocument("text", DEEP), "is no readable .odt file (XMLSyntaxError)"),
    ("a.odt", opendocument("text", f"<text:p>{'x' * 2_000_000}</text:p>"), "unpacks to more than 1 MB"),
    ("a.ods", opendocument("spreadsheet", WIDE), "is larger than 1 MB"),
    ("a.epub", PROTECTED, "protected against copying"), ("a.csv", b"\x89PNG\0", "is binary"),
    ("a.epub", zipped({"book/META-INF/rights.xml": "<x/>"}), "protected against copying"),
    ("a.csv", "x" * 140_000, "is no readable .csv file (Error)"), ("a.eml", "no mail", "no head of a mail"),
])  # fmt: skip
def test_what_is_broken_locked_or_unpacks_to_too_much_is_reported(reason, name, content, said):
    assert said in reason(name, content, max_bytes=1_000_000)


def test_text_that_grows_from_little_is_held_to_the_limit(reason):
    with zipfile.ZipFile(io.BytesIO(saved(openpyxl.Workbook()))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    main, row = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"', '<row><c t="s"><v>0</v></c></row>'
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    types = parts["[Content_Types].xml"].decode()
    strings = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'
    parts["[Content_Types].xml"] = types.replace("</Types>", strings)
    parts["xl/sharedStrings.xml"] = f"<sst {main}><si><t>{'long ' * 6_000}</t></si></sst>"
    parts["xl/worksheets/sheet1.xml"] = f"<worksheet {main}><sheetData>{row * 40}</sheetData></worksheet>"
    assert reason("a.xlsx", zipped(parts), max_bytes=1_000_000).startswith("is larger than 1 MB")


def test_headings_of_restructured_text_and_pod_become_those_of_markdown(read_one):
    table = "==== ====\na    b\n==== ====\n"
    rst = f"=====\nTitle\n=====\n\nText\n\nPart\n----\n\n{table}\nSub\n~~~\nx\n\nNo heading here\n---\n"
    doc = read_one("a.rst", rst)
    assert [line for line in doc.text.split("\n") if line.startswith("#")] == ["# Title", "## Part", "### Sub"]
    assert doc.title == "Title"
    code = (
        "Run this::\n\n   # sudo\n\n     more\n\nThen::\n.. note::\n\n   Text.\n\n.. code-block:: sh\n   :x: y\n\n   z"
    )
    shown = "Run this:\n\n```\n# sudo\n\n  more\n```\n\nThen::\n   Note: Text.\n\n```\nz\n```\n\n"
    assert read_one("b.rst", code).text == shown
    items = "=over\n\n=item * One\n\nL<text|http://x> L<perlre> E<lt>\n\n=cut\n"
    doc = read_one("a.pod", f"=head1 NAME\n\nfoo - B<bold I<x>> C<< a->b >>\n\n{items}")
    assert doc.title == "foo - bold x a->b"
    assert " ".join(doc.text.split()) == "# NAME foo - bold x a->b - One text perlre <"


def test_asciidoc_becomes_markdown_and_its_code_stays_as_it_is(read_one):
    doc = read_one("a.adoc", (
        "= Foo\n:release: 2.4\n// no\n\n[[a]]\n== Part {release}\n\nSee <<b,the part>> of https://x.org/y[X], a[0].\n\n"
        "[source,sh]\n----\n# x\n== {release}\n----\n\n|===\n|Name |Default\n\n|a\n|3 \\| 4\n|===\n\ntries::\n  How?\n"
    ))  # fmt: skip
    assert " ".join(doc.text.split()) == (
        "# Foo ## Part 2.4 See the part of X, a[0]. ``` # x == {release} ``` "
        r"| Name | Default | | --- | --- | | a | 3 \| 4 | ###### tries How?"
    )


def test_headings_of_plain_text_are_underlined_or_of_a_release_and_no_comments(read_one):
    releases = "".join(f"Version 2.{minor} (2 May 2022):\n\n   * Fixes.\n\n" for minor in range(3))
    text = f"====\nNews\n====\n\n# Made by\n# hand.\n\nPart\n~~~~\n\nNo\n# heading\n\n{releases}Since 2.1 all.\n"
    found = [line for line in read_one("pkg-NEWS", text).text.split("\n") if line[:1] == "#"]
    assert found == ["# News", "## Part", *(f"## Version 2.{minor} (2 May 2022):" for minor in range(3))]
    assert "# Alone" in read_one("a.txt", "Text.\n\n# Alone\n\nMore.").text
    assert read_one("b.txt", "release 2.4 ====\nText.").text == "## release 2.4\nText."
    assert (
        read_one("c.txt", "* Version 1\n\n** One\n\n** Two\n\n** Three").text
        == "# Version 1\n\n- One\n\n- Two\n\n- Three"
    )


@pytest.mark.parametrize("furniture", [
    '<div role="navigation">N</div>', '<div class="toc"><a href="x.html#a">N</a></div>', '<div id="footer">N</div>',
    '<ul><li><a href="#a">N 1</a><li><a href="#b">N 2</a><li><a href="#c">N 3</a></ul>',
])  # fmt: skip
def test_what_surrounds_the_text_of_a_page_is_left_out_and_most_of_its_words_never(read_one, furniture):
    page = f'<h1 id="a">Title<a href="#a">¶</a><a href="#a">\uf0c1</a></h1>{furniture}<p>All of the text.'
    doc = read_one("a.html", page)
    assert isinstance(doc, SourceDocument)
    assert (doc.title, doc.text) == ("Title", "# Title\n\nAll of the text.")
    formula = '<p>Up to <img class="math" src="a.png" alt="10^3">m<img alt="Photo"><img class="b">.'
    assert read_one("d.html", formula).text == "Up to 10^3m."
    assert read_one("b.html", '<div class="toc"><p>All of it stands here.</div>').text == "All of it stands here."
    assert read_one("c.html", "<h1>T</h1><p class=code># mkfs $P<br># x").text == "# T\n\n```\n# mkfs $P\n# x\n```"
