from __future__ import annotations

from collections.abc import Callable

import pytest

from agentic_retriever.ingestion import ChunkSettings, SkippedSource, SourceDocument, chunk_document

Read = Callable[..., list[SourceDocument | SkippedSource]]


def text_of(read: Read, body: str) -> str:
    (doc,) = read("a.html", f"<html><body>{body}</body></html>")
    assert isinstance(doc, SourceDocument), doc
    return doc.text


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
def test_structure(read: Read, body: str, expected: str) -> None:
    assert text_of(read, body) == expected


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title>Page</title><h1>One</h1>x", "One"),
        ("<title> Page\n two </title><h1>One</h1><h1>Two</h1>x", "Page two"),
        ("<title>Page</title>x", "Page"),
        ("x", "my file"),
    ],
)
def test_titles(read: Read, html: str, title: str) -> None:
    (doc,) = read("my_file.html", html)
    assert isinstance(doc, SourceDocument)
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
def test_encodings(read: Read, data: bytes) -> None:
    (doc,) = read("a.htm", data)
    assert isinstance(doc, SourceDocument)
    assert doc.text.startswith("señal")


def test_a_declared_thai_encoding_is_honoured(read: Read) -> None:
    (doc,) = read(
        "a.html", '<meta http-equiv="Content-Type" content="text/html; charset=tis-620"><p>โฉนด</p>'.encode("tis-620")
    )
    assert isinstance(doc, SourceDocument)
    assert doc.text == "โฉนด"


@pytest.mark.parametrize("html", ["<html><body></body></html>", "<script>x</script>", "<!-- only -->"])
def test_a_page_without_text_is_reported(read: Read, html: str) -> None:
    (skipped,) = read("a.html", html)
    assert isinstance(skipped, SkippedSource)
    assert skipped.reason == "holds no text"


def test_malformed_and_deeply_nested_pages(read: Read) -> None:
    assert text_of(read, "<div>" * 3000 + "deep") == "deep"
    (skipped,) = read("a.html", "<![if foo")
    assert isinstance(skipped, (SkippedSource, SourceDocument))


def test_a_page_is_chunked_by_its_headings(read: Read) -> None:
    html = (
        "<h1>Guide</h1><p>Intro.</p><h2>1.2 Limits</h2>"
        "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table><h2>Code</h2><pre># no heading</pre>"
    )
    (doc,) = read("a.html", html)
    assert isinstance(doc, SourceDocument)
    nodes = chunk_document(doc, ChunkSettings())
    assert [(node.metadata.get("section"), node.metadata["chunk_type"]) for node in nodes] == [
        (None, "text"),
        ("1.2 Limits", "table"),
        ("Code", "code"),
    ]
