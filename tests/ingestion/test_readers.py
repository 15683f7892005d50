import json
import os
import re
import textwrap
import time
from datetime import date
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import Document, IndexNode, MediaResource, Node, TextNode
from waiting import within

from agentic_retriever.errors import IndexingError, SourceError
from agentic_retriever.ingestion import (
    BoundedReader,
    SkippedSource,
    SourceDocument,
    discover,
    from_llama_documents,
    nodes_as_they_are,
    read_source,
)
from agentic_retriever.ingestion.chunking import ChunkSettings, chunk_document
from agentic_retriever.ingestion.documents import RESERVED_KEYS, clean_text, flat_metadata, parse_front_matter
from agentic_retriever.ingestion.readers import _RST_TABLE, SUPPORTED_SUFFIXES, _reflowed, _rst_table

WORDS = "Señalización luminosa: obligatoria. "


def test_a_folder_is_walked_sorted_without_hidden_files_and_the_locks_of_office(tmp_path):
    names = ["b.md", "a/z.TXT", "a/c.jsonl", ".hidden.md", ".git/x.md", "a/image.png", "a/b/c/d.html", "~$b.docx"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [path.relative_to(tmp_path).as_posix() for path in discover(tmp_path)]
    assert found == ["a/b/c/d.html", "a/c.jsonl", "a/image.png", "a/z.TXT", "b.md"]


def test_links_in_a_circle_end_a_file_is_itself_and_a_missing_path_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.md").write_text("x")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again").symlink_to(tmp_path / "a", target_is_directory=True)
    assert [path.name for path in discover(tmp_path)] == ["x.md"]
    path = tmp_path / ".notes.md"
    path.write_text("x")
    assert discover(path) == [path]
    with pytest.raises(SourceError, match="absent cannot be read: No such file or directory; check"):
        discover(tmp_path / "absent")


def test_links_that_lead_out_are_reported_unless_they_are_allowed(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / f"{folder.name}.md").write_text("x")
    (inside / "file.md").symlink_to(outside / "out.md")
    (inside / "folder").symlink_to(outside, target_is_directory=True)
    (inside / "own.md").symlink_to(inside / "in.md")
    found = discover(inside)
    assert [path.name for path in found] == ["file.md", "folder", "in.md", "own.md"]
    read = [next(read_source(path, root=inside)) for path in found]
    assert [isinstance(one, SkippedSource) for one in read] == [True, True, False, False]
    assert all("leads out of the folder" in one.reason for one in read[:2])
    allowed = discover(inside, follow_links=True)
    assert [path.name for path in allowed] == ["file.md", "out.md", "in.md", "own.md"]
    assert all(isinstance(next(read_source(path, root=inside, follow_links=True)), SourceDocument) for path in allowed)


@pytest.mark.parametrize(
    ("unit", "count"),
    [
        ("<table><tr><td>", 30_000), ("<nav>", 60_000), ("<p>x", 60_000), ("<tr><td>a<td>b", 20_000),
        ('<a href="', 60_000), ("<a ", 100_000), ("<!--", 100_000), ("<ul><li>x", 20_000), ("<div>", 60_000),
    ],
)  # fmt: skip
def test_no_page_takes_quadratic_time(tmp_path, unit, count):
    took = []
    for size in (count // 8, count // 2):
        (tmp_path / "a.html").write_text("<p>text</p><table>" + unit * size)
        started = time.process_time()
        list(read_source(tmp_path / "a.html", root=tmp_path))
        took.append(time.process_time() - started)
    assert took[1] < 8 * took[0] + 0.5


def test_no_front_matter_takes_quadratic_time():
    for unit in ("[", "{", "- ", "? ", "&a "):
        started = time.process_time()
        assert parse_front_matter(f"---\nk: {unit * (32_000 // len(unit))}\n---\ntext\n").values
        assert time.process_time() - started < 0.5


def refuse(monkeypatch, function, refused):
    """Make the operating system refuse one path: file modes mean nothing to the superuser."""
    original = getattr(os, function)

    def guarded(path, *args, **kwargs):
        if Path(str(path)) == refused:
            raise PermissionError(13, "Permission denied", str(refused))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(os, function, guarded)


def test_a_folder_without_permission_is_reported_inside_and_else_an_error(tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.md").write_text("x")
    refuse(monkeypatch, "scandir", tmp_path / "locked")
    found = discover(tmp_path)
    assert found == [tmp_path / "a.md", tmp_path / "locked"]
    (skipped,) = read_source(found[1], root=tmp_path)
    assert isinstance(skipped, SkippedSource)
    assert "folder that cannot be listed" in skipped.reason
    refuse(monkeypatch, "scandir", tmp_path)
    with pytest.raises(SourceError, match="Permission denied; check that it exists and its permissions"):
        discover(tmp_path)


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.pdf", "a.jsonl"])
def test_a_file_without_permission_is_reported(name, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_text("x")
    refused = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "read_bytes", refused)
    (skipped,) = read_source(path, root=tmp_path)
    assert isinstance(skipped, SkippedSource)
    assert skipped == SkippedSource(str(path), skipped.reason)
    assert "cannot be read: Permission denied" in skipped.reason


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        *((f"a{suffix}", "", {}, "is empty") for suffix in SUPPORTED_SUFFIXES),
        ("a.txt", "x" * 101, {"max_bytes": 100}, "is larger than 0.0001 MB; split it or raise max_file_mb"),
        ("a.md", "---\na: 1\n---\n\n", {}, "has front matter but no text"),
        ("c.jsonl", "\n  \n", {}, "holds only blank lines"),
        ("a.html", "<html><body></body></html>", {}, "holds no text"),
        ("a.html", "<script>x</script>", {}, "holds no text"), ("a.html", "<!-- only -->", {}, "holds no text"),
    ],
)  # fmt: skip
def test_a_file_that_holds_nothing_or_too_much_is_reported(reason, name, content, options, said):
    assert reason(name, content, **options) == said


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.xyz", "x", "allowed are .md, .markdown, .txt"),
        ("a.md", "---\ndoc_id: 7\n---\ntext", "'doc_id' is reserved"),
        ("a.txt", "โฉนดที่ดิน".encode("cp874"), "UTF-8"), ("a.txt", "Привет мир".encode("cp1251"), "UTF-8"),
        ("a.txt", b"abc \x81 def", "neither UTF-8 nor Windows-1252"),
        ("a.txt", b"abc \x01\x02\xe9 def", "does not look like"), ("a.txt", b"\xff\xfea", "not valid"),
        ("a.txt", b"  \n\t ", "only white space"),
        ("a.txt", b"%PDF-1.4\n1 0 obj", "does not hold what its suffix says"),
        ("a.md", rb"{\rtf1\ansi Hello}", "does not hold what its suffix says"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_reported(reason, name, content, said):
    assert said in reason(name, content)


def test_lines_of_different_encodings_in_one_file_are_read_each_for_itself(read_one):
    text = "โฉนดที่ดินแปลงนี้เป็นของรัฐ\nUn señor y una niña\n"
    mixed = text.encode() + "Un señor más, y otra niña\n".encode("cp1252")
    assert read_one("a.txt", mixed).text == text + "Un señor más, y otra niña\n"


def test_what_is_struck_over_or_coloured_to_look_bold_stands_once(read_one):
    printed = (
        "1\b1.\b.2\b2 K\bKe\bey\bys\bs\n\nA _\bk_\be_\by, a l\b_o\b_c\b_k, +\bo \x1b[1mbold\x1b[0m \x1b[31mred\x1b[m\n"
    )
    assert read_one("a.txt", printed).text == "1.2 Keys\n\nA key, a lock, o bold red\n"


PARAGRAPH = """
       The  server keeps a copy of ev‐
       ery file that was  un-
       paid. A well-
       known unpaid file is kept, as all well known ones are, and
"""
PAGE = "\n\n\nCOPY 1.2                    May 2026\n\f\nThe guide                          {0}\n\n\n       it is {0}.\n"


def test_a_typeset_text_is_read_without_its_pages_and_cut_words_and_with_its_headings(read_one):
    pages = "".join(PARAGRAPH + PAGE.format(number) for number in range(12))
    codes = "".join(f"       o      {code} - Failure\n\n" for code in range(3))
    doc = read_one(
        "a.txt", f"COPY(1)             User manual            COPY(1)\n\nNAME\n{pages}\nEXIT VALUES\n{codes}"
    )
    assert [line for line in doc.text.split("\n") if line.startswith("#")] == ["# NAME", "# EXIT VALUES"]
    assert "keeps a copy of every\n       file that was  unpaid.\n       A well-known" in doc.text
    assert "as all well known ones are, and\n       it is 7." in doc.text
    assert "The guide" not in doc.text
    assert "May 2026" not in doc.text
    assert "-      2 - Failure" in doc.text


OPTIONS = """
       -q, --quiet
              Writes nothing.

       -n NUMBER
       --tries=NUMBER
              Tries that often.

       -x     Stops at
              the first one.

       /etc/x.d
              Files.

       size limit[k|M] | DNS=
              Rotates.

       This goes on over here and then there, of
          which no word is a term.

       This  is -x
       as  well.
"""


def test_options_and_terms_head_what_is_said_of_them(read_one):
    manual = read_one("a.txt", "NAME\n" + PARAGRAPH * 12 + OPTIONS).text
    wanted = ["###### -q, --quiet", "###### -n NUMBER, --tries=NUMBER", "###### -x", "###### /etc/x.d"]
    wanted += ["###### size limit[k|M] | DNS="]
    assert [line for line in manual.split("\n") if line.startswith("####")] == wanted
    assert "###### -x\n           Stops at\n              the first one." in manual
    listed = (
        "<dl><dt>-n</dt> <dt>--tries</dt><dd>Often.<dl><dt>Note</dt><dd>Inner</dd></dl></dd><dt>Host</dt><dd>A.</dl>"
    )
    terms = "###### -n, --tries\n\nOften.\n\nNote\n\nInner\n\n###### Host\n\nA."
    assert read_one("a.html", listed).text == terms
    assert read_one("a.html", f"<div>{listed}</div><section><h2>B</h2>").text == f"{terms}\n\n## B"
    assert "#" not in read_one("a.html", f"<div>{listed}</div><p>More").text  # else it would stand below the last one
    pod = "=item B<-n>\n\n=item B<--tries>\n\nOften.\n\n=item * Point.\n\n=item 1.\n\n=item Many words.\n"
    assert read_one("a.pod", pod).text == "###### -n, --tries\n\nOften.\n\n- Point.\n\n- 1.\n\n- Many words.\n"
    pod = "=over\n\n=item *\n\nFirst.\n\n=item\n\nSecond:\n\n  # code\n\n    $x B<y>\n\nEnd.\n\n=back\n"
    shown = "- First.\n\n- Second:\n\n```\n# code\n\n  $x y\n```\n\nEnd."
    assert read_one("b.pod", pod).text.strip() == shown
    rst = ".. option:: --tries\n\n   Often.\n\n``-x``\n   Stops.\n"
    assert read_one("a.rst", rst).text == "###### --tries\n\n   Often.\n\n###### ``-x``\n    Stops.\n"


PIECES = st.sampled_from(["a", "un-", "paid", "-a", "--b", "-c  d", "un\u2010", "unpaid", "1.", "B.2", "Ü", ""])


@given(st.lists(st.lists(PIECES, max_size=4).map(" ".join), min_size=50, max_size=99), st.sampled_from(["x", "   "]))
def test_no_letter_is_lost_and_a_text_that_is_not_typeset_is_read_as_it_is(lines, indent):
    text = "\n".join(indent + line for line in lines)
    read = _reflowed(text)
    assert [char for char in read if char.isalnum()] == [char for char in text if char.isalnum()]
    assert read == text or indent != "x"


def test_heads_of_a_change_log_are_headings_and_not_of_pages(read_one):
    items = "\n\n    *) Fix." * 8
    log = "\n\n\n".join(f"Changes with x 1.{at}.0{'':20}0{at} Dec 2021{items}" for at in range(1, 9))
    heads = [line for line in _reflowed(log).split("\n") if line[:1] == "#"]
    assert heads == [f"# Changes with x 1.{at}.0 0{at} Dec 2021" for at in range(1, 9)]
    assert read_one("NEWS", "NEWS -*- outline -*-\n\n* 1.2\n\n** Bugs\n*a*").text.endswith("\n\n# 1.2\n\n## Bugs\n*a*")
    outline = "* 1.2\n\nOf May.\n\n** Bugs\n\n- One\n\n** More\n\n* 1.1\n\n** Bugs\n\nNone.\n"
    assert read_one("NEWS", outline).text == outline.replace("** ", "## ").replace("\n* ", "\n# ").replace(
        "* ", "# ", 1
    )
    listed = outline.replace("- One\n", "* One\n* Two\n* Three\n* Four\n")
    assert "# One" not in read_one("NEWS", listed).text


@pytest.mark.parametrize(("name", "unit"), [
    ("a.txt", "word "), ("a.txt", "  x-\n"), ("a.txt", "      x   y\n\n\n"), ("a.txt", "x"), ("a.txt", "   -a\n"),
    ("a.html", "<dt>a"), ("a.html", "<dl><dt>a</dl> "), ("a.pod", "=item a\n"), ("a.rst", "-a  b\n"),
    ("a.txt", "\n\n   -a -a"), ("a.md", "* "), ("a.rst", "= "), ("a.pod", "B<< "), ("a.pod", "X<"), ("a.html", "<p>a "),
    ("a.csv", "a,"), ("a.txt", "ไทย"), ("a.rst", "a::"), ("a.rst", "a::\n"), ("a.rst", "a::\n\n b\n\n"),
    ("a.rst", "+--+\n| a|\n"), ("a.rst", "\n+-+\n"), ("a.rst", "== ==\na  b\n"), ("a.rst", "\n== ==\n"),
    ("a.rst", ".. note::\n"), ("a.rst", ":a:`"), ("a.rst", "`a <"), ("a.rst", ".. list-table::\n\n   * - a\n"),
    ("a.rst", ".. raw::\n\n"), ("a.rst", ".. csv-table::\n\n  a,b\n"), ("a.rst", " a::\n\n  b\n"), ("a.rst", ".. _a"),
    ("a.rst", " == =="), ("a.pod", "\n  a\n"), ("a.pod", "   \n"), ("a.pod", "\n=item *\n"),
])  # fmt: skip
def test_a_file_of_one_long_line_is_read_in_linear_time(read, name, unit):
    read("warm" + name, unit)
    began = time.process_time()
    assert read(name, unit * (200_000 // len(unit)))
    assert time.process_time() - began < 5


RULE = "+------+----------+"
GRID = f"\n{RULE}\n| Size | Speed    |\n{RULE.replace('-', '=')}\n| M8   | slow and |\n|      | safe     |\n{RULE}\n"
GRID += f"| both | a|b      |\n{RULE}\n"
RULED = "\n==== =====\nSize Speed\n==== =====\nM8   slow and\n     safe\nboth a|b\n==== =====\n"


@pytest.mark.parametrize("drawn", [GRID, RULED, textwrap.indent(GRID, "   "), textwrap.indent(RULED, "   ")])
def test_tables_of_restructured_text_become_those_of_markdown(read_one, drawn):
    text = "| Size | Speed |\n| --- | --- |\n| M8 | slow and safe |\n| both | a\\|b |"
    assert read_one("a.rst", f"Of bolts.\n{drawn}\nEnd.").text == f"Of bolts.\n\n{text}\n\nEnd."


@pytest.mark.parametrize(("marked", "text"), [
    (".. note::\n\n   Keep *it*\n   dry.\n", "   Note: Keep *it*\n   dry.\n"),
    (".. warning :: Hot.\n", " Warning: Hot.\n"),
    ("  .. versionadded:: 3.2\n     Faster.\n", "  Added in version 3.2: Faster.\n"),
    (".. deprecated:: 4\n\nText\n", "Deprecated since version 4\n\nText\n"),
    (".. [#] Said elsewhere.\n.. rubric:: Parts\n", " Note: Said elsewhere.\nParts\n"),
    (".. _part-two:\n.. image:: a b.png\n   :width: 400\n\nText\n", "\nText\n"),
    ("A\n\n.. raw:: html\n\n   <br>\n\n.. toctree::\n   :glob:\n\n   a\n\nB\n", "A\n\nB\n"),
    ("Of :ref:`lamps <Of lamps>`, :class:`~a.Lamp`, :pep:`8`, `us`_ and `it <http://a.b>`_.\n",
     "Of lamps, a.Lamp, PEP 8, us and it (http://a.b).\n"),
    ("``a`` and ``b``, elec\\ tric \\*s\n", "``a`` and ``b``, electric *s\n"),
    ("  So::\n\n     `run`\n\n  It runs.\n", "  So:\n\n```\n`run`\n```\n\n  It runs.\n"),
    ("- So::\n\n    run\n\n  It runs.\n", "- So:\n\n```\nrun\n```\n\n  It runs.\n"),
    ("1. So::\n\n\trun\n\n   It runs.\n", "1. So:\n\n```\nrun\n```\n\n   It runs.\n"),
    (".. list-table:: Of bolts\n\n   * - Size\n     - Speed\n   * - M8\n     - - so\n       - so\n   * - M9\n",
     "Of bolts\n\n| Size | Speed |\n| --- | --- |\n| M8 | - so - so |\n| M9 |  |\n\n"),
    ('.. csv-table::\n   :header: Size, Speed\n\n   M8, "slow, safe"\n',
     "\n\n| Size | Speed |\n| --- | --- |\n| M8 | slow, safe |\n\n"),
    (".. csv-table::\n   :file: a.csv\n\nEnd\n", ".. csv-table::\n   :file: a.csv\n\nEnd\n"),
])  # fmt: skip
def test_marks_of_restructured_text_become_words(read_one, marked, text):
    assert read_one("a.rst", marked).text == text


@pytest.mark.parametrize("row", ["| M8   | slow and  |", "| M8   | slow and  "])
def test_a_table_with_a_row_that_ends_elsewhere_has_its_rows_all_the_same(read_one, row):
    drawn = GRID.replace("| M8   | slow and |", row).replace("a|b", "a/b")
    rows = read_one("a.rst", f"Of bolts.\n{drawn}").text.split("\n\n")[1].splitlines()
    assert rows == ["| Size | Speed |", "| --- | --- |", "| M8 | slow and safe |", "| both | a/b |"]


def test_what_is_no_table_of_restructured_text_is_left_as_it_is(read_one):
    for text in ("+--+\n| x\n| y +\n", "== ==\n a b\n== ==\nc", "+-+-+\n| a b|\n+-+\n", "==== ====\nName Of\n"):
        assert read_one("a.rst", f"Text.\n\n{text}").text == f"Text.\n\n{text}"


@given(st.text(alphabet="+-=| a\n", max_size=80))
def test_any_drawing_is_read(text):
    rows = _RST_TABLE.sub(_rst_table, text)
    assert rows.count("a") == text.count("a")


FAQ = """Contents

1. Why does it hang?
2. It prints nothing, whatever
I do.
3. Who wrote it?

1. Why does it hang?

   It waits.

2. It prints nothing, whatever
   I do.

   Is it on?

3. Who wrote it?

   Ada.
"""


def test_what_a_list_names_before_are_the_headings_of_a_text_and_the_list_goes(read_one):
    heads = ["## 1. Why does it hang?", "## 2. It prints nothing, whatever I do.", "## 3. Who wrote it?"]
    parts = re.split("\n\n+", read_one("a.txt", FAQ).text.strip())
    assert parts == ["Contents", heads[0], "   It waits.", heads[1], "   Is it on?", heads[2], "   Ada."]
    one_is_missing = FAQ.replace("\n2. It prints nothing, whatever\n   I do.\n", "")
    assert read_one("a.txt", one_is_missing).text == one_is_missing
    repeated = "a b\nc d\ne f\n\na b\n\na b\n\na b\n"
    assert read_one("a.txt", repeated).text == repeated


@pytest.mark.parametrize(("text", "heads"), [
    ("2014-06-02  Ada L  <ada@example.com>\n\n\t* A fix.\n\n", "## 2014-06-02  Ada L  <ada@example.com>"),
    ("tlf (1.4.1-2) unstable; urgency=low\n\n  * A fix.\n\n -- Ada\n\n", "## tlf (1.4.1-2) unstable; urgency=low"),
    ("- Version 4.9 **\n\n  * A fix.\n\n", "## - Version 4.9 **"),
    ("\n             Rise and Set\n\nThe sun rises.\n", "## Rise and Set"),
    ("\n             cvs update\n\nIt updates.\n", ""), ("- Version 4.9 is out\n- and so\n\n", ""),
])  # fmt: skip
def test_lines_that_head_an_entry_of_a_log_or_stand_in_the_middle_are_headings(read_one, text, heads):
    found = re.findall("^#.*", read_one("a.txt", f"It began.\n\n{text}{text}{text}").text, re.MULTILINE)
    assert found == 3 * [heads] if heads else not found


def test_bold_paragraphs_and_legends_are_the_headings_of_a_page_without_others(read_one):
    page = "<legend>Use</legend><p><b><u>Keys</u></b></p><b><font><p>Who?</p></font></b>"
    page += "<p><b>Not</b> all</p><p><b>Stop.</b></p>"
    assert read_one("a.html", page).text == "### Use\n\n### Keys\n\n### Who?\n\nNot all\n\nStop."
    assert "### Keys" not in read_one("a.html", f"<h1>A</h1>{page}<h2>B</h2>{page}<h2>C</h2>").text


def test_a_table_of_html_within_markdown_is_read_and_one_within_code_is_not(read_one):
    table = "<table>\n<tr><th>Name</th><th>Default</th></tr>\n<tr><td>speed</td><td>1 &amp; up</td></tr>\n</table>"
    rows = "| Name | Default |\n| --- | --- |\n| speed | 1 & up |"
    text = read_one("a.md", f"Options:\n{table}\n```\n{table}\n```\n<table><img></table>\n").text
    assert text == f"Options:\n\n\n{rows}\n\n\n```\n{table}\n```\n<table><img></table>\n"
    for told in ("Of `<table>`.\n\n# B\n\n`</table>`\n", "<table> begins\n\n# B\n\na </table>\n"):
        assert read_one("a.md", told).text == told


@pytest.mark.parametrize("suffix", [".md", ".txt", ".html", ".csv", ".rst", ".pod"])
@pytest.mark.parametrize("word", ["Word", "โฉนด", "שלום", "مرحبا"])
def test_a_document_of_one_word_is_that_word_in_one_node(read_one, suffix, word):
    doc = read_one("a" + suffix, word)
    [node] = chunk_document(doc, ChunkSettings())
    assert word in node.text


@pytest.mark.parametrize("title", ["โฉนดที่ดิน", "כותרת ראשית", "عنوان المادة"])
def test_headings_in_thai_and_from_right_to_left_are_headings(read_one, title):
    for name, content in (("a.html", f"<h1>{title}</h1><p>x y</p>"), ("a.rst", f"{title}\n{'=' * len(title)}\n\nx y")):
        doc = read_one(name, content)
        assert (doc.title, doc.text) == (title, f"# {title}\n\nx y")


def test_a_table_of_ten_thousand_rows_is_read_whole(read_one):
    doc = read_one("a.csv", "code,limit\n" + "".join(f"E{at},{at}.5\n" for at in range(10_000)))
    assert doc.text.count("\n") == 10_001
    assert doc.text.startswith("| code | limit |\n| --- | --- |\n| E0 | 0.5 |\n")
    assert "| E9999 | 9999.5 |" in chunk_document(doc, ChunkSettings())[-1].text


def test_numbers_of_paragraphs_and_notes_are_left_out_of_a_page_and_other_links_stay(read_one):
    page = '<label><a href="#o4">4</a></label><p>Text<sup><a href="#n1">1</a></sup>, see <a href="#e">(3)</a>.</p>'
    assert read_one("a.html", page).text == "Text, see (3)."


def test_an_error_that_no_parser_should_raise_costs_only_its_file(reason, monkeypatch):
    def broken(_content):
        raise AssertionError("canary-5d1")

    monkeypatch.setattr("agentic_retriever.ingestion.readers.html_to_text", broken)
    told = "broke its reader with AssertionError; save it again, or in another format"
    assert reason("a.html", "<p>Words</p>") == told


# Reading in a process of its own


def _nested_forms(levels, width):
    """A PDF whose page draws a form, which draws the next one several times, and so on."""
    parts = {1: b"<</Type/Catalog/Pages 2 0 R>>", 2: b"<</Type/Pages/Kids[3 0 R]/Count 1>>"}
    use = b"/Resources<</XObject<</X %d 0 R>>>>"
    parts[3] = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R%s>>" % (use % 5)
    parts[4] = b"<</Length 5>>stream\n/X Do\nendstream"
    for at in range(levels):
        form = b"<</Type/XObject/Subtype/Form/BBox[0 0 9 9]%s/Length %d>>stream\n%s\nendstream"
        parts[5 + at] = form % (use % (6 + at), 6 * width, b"/X Do " * width)
    parts[5 + levels] = b"<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Length 9>>stream\n0 0 9 9 re f\nendstream"
    body = b"".join(b"%d 0 obj\n%s\nendobj\n" % one for one in parts.items())
    return b"%PDF-1.4\n" + body + b"trailer<</Root 1 0 R>>\n%%EOF\n"


@pytest.mark.skipif(os.name == "nt", reason="there are no limits to set there")
def test_a_file_that_takes_too_much_costs_only_itself(tmp_path, read_one):
    (tmp_path / "bomb.pdf").write_bytes(_nested_forms(10, 14))
    page = "<h1>A</h1><p>" + "word " * 300_000
    expected = read_one("good.html", page)
    with BoundedReader(3, 2_000_000_000) as reader:
        found = [
            next(reader.read(tmp_path / name, root=tmp_path, max_bytes=10**8, follow_links=False))
            for name in ("bomb.pdf", "good.html", "good.html", "gone.pdf")
        ]
    assert found[1:3] == [expected, expected]
    assert found[0].source.endswith("bomb.pdf")
    assert "took more than 3 s of computing or 2 GB of memory, or broke its reader" in found[0].reason
    assert "cannot be read" in found[3].reason


def test_a_file_at_the_limit_is_read_and_only_its_line_ends_are_translated(read_one):
    assert read_one("b.txt", "x" * 100, max_bytes=100).kind == "txt"
    assert read_one("a.txt", "  a\r\nb\rc\u2028d\x0c \n\n").text == "  a\nb\nc\u2028d\x0c \n\n"


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.jsonl"])
@pytest.mark.parametrize("content", [b"\x89PNG\r\n\0\0\0\rIHDR\0", b"\xff\xfe\0"])
def test_binary_content_is_reported(read, name, content):
    skipped = [found for found in read(name, content) if isinstance(found, SkippedSource)]
    assert skipped
    assert len(skipped) == len(read(name, content))


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes among the files there")
def test_broken_links_pipes_and_vanished_files_are_reported(tmp_path):
    (tmp_path / "gone.md").symlink_to(tmp_path / "nowhere.md")
    os.mkfifo(tmp_path / "pipe.jsonl")
    reasons = [
        skipped.reason
        for path in discover(tmp_path)
        for skipped in read_source(path, root=tmp_path)
        if isinstance(skipped, SkippedSource)
    ]
    assert len(reasons) == 2
    assert "No such file" in reasons[0]
    assert reasons[1] == "is no regular file"


def test_ids_and_places_are_the_same_for_a_relative_root(tmp_path, monkeypatch):
    path = tmp_path / "sub" / "my_long-note.txt"
    path.parent.mkdir()
    path.write_text(WORDS)
    (below,) = read_source(path, root=tmp_path)
    (itself,) = read_source(path, root=path)
    assert (below.doc_id, below.source, below.root) == ("sub/my_long-note.txt", str(path), str(tmp_path))
    assert (itself.doc_id, itself.root) == ("my_long-note.txt", str(path))
    assert below.title == "my long note"
    (tmp_path / "a.txt").write_text(WORDS)
    monkeypatch.chdir(tmp_path)
    (doc,) = read_source(Path("a.txt"), root=Path())
    assert (doc.doc_id, doc.source) == ("a.txt", str(tmp_path / "a.txt"))


@pytest.mark.skipif(os.name == "nt", reason="file names are always Unicode there")
def test_a_file_name_that_is_no_utf8_can_still_be_stored(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    Path(os.fsdecode(path)).write_text(WORDS)
    (found,) = discover(tmp_path)
    (doc,) = read_source(found, root=tmp_path)
    assert doc.doc_id == "caf\\xe9.txt"
    doc.source.encode()


@pytest.mark.parametrize(
    "data",
    [b"\xef\xbb\xbf" + WORDS.encode(), b"\xfe\xff" + WORDS.encode("utf-16-be")]
    + [WORDS.encode(encoding) for encoding in ("utf-8", "utf-16", "utf-32", "latin-1", "cp1252")],
)
def test_encodings(read_one, data):
    assert read_one("a.txt", data).text == WORDS


def test_markdown_titles_and_front_matter_become_metadata(read_one):
    assert read_one("a.md", "---\ntitle: Front\n---\n# Heading\n\ntext").title == "Front"
    assert read_one("a.md", "intro\n\n# The *heading*\n\ntext").title == "The heading"
    assert read_one("a_b.md", "## Lower\n\ntext").title == "a b"
    doc = read_one("a.md", "---\ntitle: T\nyear: 2020\ntags: [a, b]\ndraft: ~\n---\ntext")
    assert doc.metadata == {"title": "T", "year": 2020, "tags": ["a", "b"]}
    assert doc.text.startswith("---\ntitle")
    assert doc.kind == "md"


def test_the_content_hash_follows_everything_that_nodes_are_made_of(make_doc):
    base = make_doc("text", metadata={"a": 1, "b": [1]})
    assert base.content_hash == make_doc("text", metadata={"b": [1], "a": 1}, source="/elsewhere").content_hash
    others = [
        make_doc("Text", metadata=base.metadata), make_doc("text", metadata={"a": 2, "b": [1]}),
        make_doc("text", metadata={"a": "1", "b": [1]}), make_doc("text", metadata=base.metadata, title="T"),
        make_doc("text", metadata=base.metadata, kind="txt"),
    ]  # fmt: skip
    assert len({base.content_hash, *(doc.content_hash for doc in others)}) == 6


VALUES = [
    (" text", "text"), (" 12", 12), (" -3", -3), (" 007", "007"), (" 1.5", 1.5), (" 1e5", "1e5"), (" true", True),
    (" null", None), ("", None), (' "12"', "12"), (" 'it''s'", "it's"), (' "x \\"y\\" # z"', 'x "y" # z'),
    (" text # comment", "text"), (" [1, two, 'three, four']", [1, "two", "three, four"]), (" []", []),
    ("\n  - one\n  - 2", ["one", 2]), ("\n- one\n- two: x", ["one", {"two": "x"}]), (" {b: 1}", {"b": 1}),
    (" |\n  first\n  second", "first\nsecond"), ("\n  b: 1\n  c: 2", {"b": 1, "c": 2}),
    (" >\n  folded\n  text", "folded text"),
]  # fmt: skip
# What is no YAML, or more than plain data, stays as it was written.
AS_WRITTEN = [
    "2024-05-01", "http://x.y/z", "yes", "12:30", "Part 1: lights", "[draft] Lights", "*emphasis*", "@someone",
    "&x [*x]", "!!python/object/apply:os.system [ls]", "!!int none", "[" * 50_000,
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        *((f"a:{text}", "a", value) for text, value in VALUES), *((f"a: {text}", "a", text) for text in AS_WRITTEN),
        ("año de emisión: 2020", "año de emisión", 2020), ("2020: 1", "2020", 1), ('"quoted": 1', "quoted", 1),
        ("# comment\n\na: 1", "a", 1),
    ],
)  # fmt: skip
def test_values_of_front_matter(line, key, value):
    found = parse_front_matter(f"---\n{line}\n---\nbody")
    assert found is not None
    assert dict(found.values) == {key: value}
    assert type(found.values[key]) is type(value)


def test_the_body_begins_behind_it_and_a_value_that_is_no_yaml_costs_no_other():
    text = "---  \na: 1\n...\nbody"
    found = parse_front_matter(text)
    assert found is not None
    assert text[found.end :] == "body"
    found = parse_front_matter("---\na: b: c\ny: &x [1, 1]\nz: [*x, *x]\nn: 1\n---\nbody")
    assert found is not None
    assert dict(found.values) == {"a": "b: c", "y": [1, 1], "z": "[*x, *x]", "n": 1}


NO_FRONT_MATTER = [
    "", "body", "---\n", "---\nno key here\n---\n", "---\n---\n", "a\n---\nb: 1\n---\n", "---\na: 1\n",
    " ---\na: 1\n---\n",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_FRONT_MATTER)
def test_what_is_no_front_matter(text):
    assert parse_front_matter(text) is None


@given(st.text(alphabet="ab:-[]\"'\n #|\\1.", max_size=60))
def test_any_text_is_read_without_error(text):
    found = parse_front_matter(f"---\nk: 1\n{text}\n---\nbody")
    assert found is not None
    assert found.end > len("---")


def test_an_unclosed_block_is_not_searched_for_ever():
    with within(1):
        assert parse_front_matter("---\n" + "a: 1\n" * 1_000_000) is None


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
        (
            "<table><tr><th>x</th><th>y|z</th></tr><tr><td>1</td><td>2</td></tr></table>",
            "| x | y\\|z |\n| --- | --- |\n| 1 | 2 |",
        ),
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
        ("<title> Page\n two </title><h1>One</h1><h1>Two</h1>x", "Page two"), ("<title>Page</title>x", "Page"),
        ("x", "my file"),
    ],
)  # fmt: skip
def test_html_titles(read_one, html, title):
    assert read_one("my_file.html", html).title == title


@pytest.mark.parametrize(
    "data",
    [
        "<p>señal</p>".encode(), b"\xef\xbb\xbf" + "<p>señal</p>".encode(),
        '<meta charset="iso-8859-1"><p>señal</p>'.encode("latin-1"),
        "<p>señal, una palabra entre otras más</p>".encode("cp1252"), "<p>señal</p>".encode("utf-16"),
        '<meta charset="no-such-thing"><p>señal, una palabra entre otras más</p>'.encode("cp1252"),
        '<meta http-equiv="Content-Type" content="text/html; charset=tis-620"><p>โฉนด</p>'.encode("tis-620"),
    ],
)  # fmt: skip
def test_html_encodings(read_one, data):
    assert read_one("a.htm", data).text.startswith(("señal", "โฉนด"))


def test_malformed_and_deeply_nested_pages(read_one, read):
    assert read_one("a.html", "<div>" * 3000 + "deep").text == "deep"
    (skipped,) = read("a.html", "<![if foo")
    assert isinstance(skipped, (SkippedSource, SourceDocument))


def test_a_page_is_chunked_by_its_headings(read_one):
    words = "word " * 40
    html = (
        f"<h1>Guide</h1><p>Intro {words}.</p><h2>1.2 Limits</h2><table><tr><th>a</th><th>b</th></tr>"
        f"<tr><td>1</td><td>{words}</td></tr></table><h2>Code</h2><pre># no heading\n{words}</pre>"
    )
    doc = read_one("a.html", html)
    nodes = chunk_document(doc, ChunkSettings())
    assert [(node.metadata.get("section"), node.metadata["chunk_type"]) for node in nodes] == [
        (None, "text"), ("1.2 Limits", "table"), ("Code", "code"),
    ]  # fmt: skip


def line(**fields):
    return json.dumps(fields, ensure_ascii=False) + "\n"


def test_a_record_in_beir_form_whose_metadata_wins_over_other_fields(read_one):
    metadata = {"year": 1958, "tags": ["x"], "who": {"name": "n"}}
    record = line(_id="7", title="T", text=" a\r\nb ", metadata=metadata, lang="en")
    doc = read_one("corpus.jsonl", record)
    assert (doc.doc_id, doc.title, doc.text, doc.kind) == ("7", "T", " a\r\nb ", "jsonl")
    assert doc.metadata == {"lang": "en", "year": 1958, "tags": ["x"], "who_name": "n"}
    assert doc.source.endswith("corpus.jsonl")
    doc = read_one("corpus.jsonl", line(_id="1", text="t", year=1, metadata={"year": 2, "title": "M"}))
    assert doc.metadata == {"year": 2, "title": "M"}
    assert doc.title == "M"


@pytest.mark.parametrize(
    ("fields", "doc_id"),
    [({"_id": 7}, "7"), ({"id": "x"}, "x"), ({"_id": "a", "id": "b"}, "a"), ({"_id": None, "id": 0}, "0")],
)
def test_ids_of_records(read_one, fields, doc_id):
    assert read_one("corpus.jsonl", line(text="t", **fields)).doc_id == doc_id


@pytest.mark.parametrize(
    ("fields", "text"),
    [({"title": "Only", "text": ""}, "Only"), ({"title": "Only"}, "Only"), ({"title": " ", "text": ""}, "")],
)
def test_a_record_with_only_a_title_takes_it_as_text(read_one, fields, text):
    doc = read_one("corpus.jsonl", line(_id="1", **fields))
    assert (doc.doc_id, doc.text, bool(chunk_document(doc, ChunkSettings()))) == ("1", text, bool(text))


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("{broken", "not valid JSON"), ("[1, 2]", "JSON list, not an object"), ("7", "JSON int"),
        (line(text="no id").strip(), "no _id"), (line(_id="", text="t").strip(), "no _id"),
        (line(_id=True, text="t").strip(), "no _id"), (line(_id="x", text=5).strip(), "'text' is a int"),
        (line(_id="x", text="t", title=["a"]).strip(), "'title' is a list"),
        (line(_id="x", text="t", metadata=[1]).strip(), "is a list, not an object"),
        (line(_id="x", text="t", doc_id="y").strip(), "'doc_id' is reserved"),
        (line(_id="a", text="again").strip(), "'a' is that of line 1 already"),
        ('{"_id": "x", "text": "t", "n": NaN}', "NaN is no JSON number"),
        ('{"_id": "x", "n": ' + "[" * 100_000, "not valid JSON"),
    ],
)  # fmt: skip
def test_a_bad_line_is_reported_with_its_number_and_the_rest_goes_in(read, bad, expected):
    found = read("corpus.jsonl", f"{line(_id='a', text='t')}\n{bad}\n{line(_id='b', text='t')}")
    assert [doc.doc_id for doc in found if isinstance(doc, SourceDocument)] == ["a", "b"]
    (skipped,) = (item for item in found if isinstance(item, SkippedSource))
    assert skipped.source.endswith("corpus.jsonl:3")
    assert expected in skipped.reason


def test_lines_that_are_not_utf8_binary_or_overlong_are_one_report_each(read):
    found = read("c.jsonl", b'{"_id": "\xe9", "text": "t"}\n{"_id": "1\0"}\n' + line(_id="b", text="t").encode())
    assert [type(item) for item in found] == [SkippedSource, SkippedSource, SourceDocument]
    assert "not UTF-8" in found[0].reason
    assert "NUL" in found[1].reason
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
    assert read_one("c.jsonl", '{"_id": "1", "text": "a\\ud800b\\u0000c"}').text == "a\ufffdb\ufffdc"


def test_scalars_and_lists_stay_and_cleaning_keeps_the_length():
    given = {"s": "x", "i": 1, "f": 1.5, "b": True, "l": ["a", 1, False]}
    flat = flat_metadata(given, doc_id="d")
    assert flat == given
    assert flat["l"] is not given["l"]
    text = "a\ud83dß\0ก"
    assert len(clean_text(text)) == len(text)
    clean_text(text).encode()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": None}, {}), ({"a": {"b": 1, "c": {"d": "x"}}}, {"a_b": 1, "a_c_d": "x"}),
        ({"a": {"b": 1}, "a_b": 2}, {"a": '{"b": 1}', "a_b": 2}), ({"a": {}}, {}),
        ({"a": [{"b": 1}, None]}, {"a": ['{"b": 1}']}), ({"a": date(2024, 5, 1)}, {"a": "2024-05-01"}),
        ({"a": {3, 1, 2}}, {"a": [1, 2, 3]}), ({1: "x"}, {"1": "x"}), ({"a": "x\ud800\0"}, {"a": "x\ufffd\ufffd"}),
        ({"a": {"b": {"c": {"d": {"e": 1}}}}}, {"a_b_c_d": '{"e": 1}'}), ({"doc_id": "d", "a": 1}, {"a": 1}),
        ({"doc": {"id": 7}}, {"doc": '{"id": 7}'}),
    ],
)  # fmt: skip
def test_other_values(given, expected):
    assert flat_metadata(given, doc_id="d") == expected


@pytest.mark.parametrize(
    ("key", "said"),
    [(" ", "key is empty"), *((k, f"'{k}' is reserved for the store; rename it") for k in sorted(RESERVED_KEYS))],
)
def test_reserved_and_empty_keys_are_refused(key, said):
    with pytest.raises(SourceError, match=said):
        flat_metadata({key: "other"}, doc_id="d")


def test_documents_keep_id_text_and_metadata():
    given = Document(id_="d1", text=" # A\n\ntext ", metadata={"title": "T", "year": 2020, "when": date(2024, 5, 1)})
    (doc,) = from_llama_documents([given])
    assert isinstance(doc, SourceDocument)
    assert (doc.doc_id, doc.text, doc.title, doc.kind) == ("d1", " # A\n\ntext ", "T", "document")
    assert doc.metadata == {"title": "T", "year": 2020, "when": "2024-05-01"}
    (node,) = chunk_document(doc, ChunkSettings())
    assert (node.ref_doc_id, node.metadata["section"]) == ("d1", "A")


def test_unusable_documents_are_reported_in_their_place():
    found = list(
        from_llama_documents(
            [
                Document(id_="a", text="text"), Document(id_="b", text="  "), Document(id_="a", text="again"),
                Document(id_=" ", text="text"), Document(id_="c", text="text", metadata={"_node_content": "x"}),
                Document(id_="d", text="text", metadata={"doc_id": "d"}),
            ]
        )
    )  # fmt: skip
    assert [found[at].doc_id for at in (0, 5)] == ["a", "d"]
    reasons = [item.reason for item in found if isinstance(item, SkippedSource)]
    assert [
        word in text for word, text in zip(("no text", "same id", "blank id", "reserved"), reasons, strict=True)
    ] == [True] * 4


def test_nodes_are_copied_as_text_nodes_and_reported_without_text():
    nodes = [
        TextNode(id_="a", text=" text ", metadata={"k": {"deep": [1]}}, embedding=[1.0, 2.0]),
        IndexNode(id_="b", text="more", index_id="i"),
    ]
    copies = nodes_as_they_are(nodes, on_skip=pytest.fail)
    assert [copy.to_dict() for copy in copies] == [node.to_dict() for node in nodes]
    assert isinstance(copies[1], IndexNode)
    copies[0].metadata["k"]["deep"].append(2)
    assert nodes[0].metadata == {"k": {"deep": [1]}}
    (node,) = nodes_as_they_are(
        [Node(id_="n", text_resource=MediaResource(text="words"), metadata={"k": 1})], on_skip=pytest.fail
    )
    assert isinstance(node, TextNode)
    assert (node.node_id, node.text, node.metadata) == ("n", "words", {"k": 1})
    skipped: list[SkippedSource] = []
    nodes = [TextNode(id_="a", text=" "), TextNode(id_="b", text="x")]
    assert [node.node_id for node in nodes_as_they_are(nodes, on_skip=skipped.append)] == ["b"]
    assert skipped == [SkippedSource("a", "the node has no text")]


@pytest.mark.parametrize(("ids", "message"), [(["a", "b", "a"], "nodes 0 and 2 share the id 'a'"), ([" "], "blank id")])
def test_ids_must_be_unique(ids, message):
    with pytest.raises(IndexingError, match=message):
        nodes_as_they_are([TextNode(id_=node_id, text="x") for node_id in ids], on_skip=pytest.fail)
