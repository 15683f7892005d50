from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from agentic_retriever.ingestion import ChunkSettings, SkippedSource, SourceDocument, chunk_document

Read = Callable[..., list[SourceDocument | SkippedSource]]


def line(**fields: object) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"


def one(read: Read, **fields: object) -> SourceDocument:
    (doc,) = read("corpus.jsonl", line(**fields))
    assert isinstance(doc, SourceDocument), doc
    return doc


def test_a_record_in_beir_form(read: Read) -> None:
    doc = one(
        read,
        _id="7",
        title="T",
        text=" a\r\nb ",
        metadata={"year": 1958, "tags": ["x"], "who": {"name": "n"}},
        lang="en",
    )
    assert (doc.doc_id, doc.title, doc.text, doc.kind) == ("7", "T", " a\r\nb ", "jsonl")
    assert doc.metadata == {"lang": "en", "year": 1958, "tags": ["x"], "who_name": "n"}
    assert doc.source.endswith("corpus.jsonl")


@pytest.mark.parametrize(
    ("fields", "doc_id"),
    [({"_id": 7}, "7"), ({"id": "x"}, "x"), ({"_id": "a", "id": "b"}, "a"), ({"_id": None, "id": 0}, "0")],
)
def test_ids(read: Read, fields: dict[str, object], doc_id: str) -> None:
    assert one(read, text="t", **fields).doc_id == doc_id


def test_a_record_with_only_a_title_takes_it_as_text(read: Read) -> None:
    assert one(read, _id="1", title="Only", text="").text == "Only"
    assert one(read, _id="1", title="Only").text == "Only"


def test_metadata_wins_over_other_fields_and_may_bring_the_title(read: Read) -> None:
    doc = one(read, _id="1", text="t", year=1, metadata={"year": 2, "title": "M"})
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
def test_a_bad_line_is_reported_with_its_number_and_the_rest_goes_in(read: Read, bad: str, expected: str) -> None:
    found = read("corpus.jsonl", f"{line(_id='a', text='t')}\n{bad}\n{line(_id='b', text='t')}")
    assert [doc.doc_id for doc in found if isinstance(doc, SourceDocument)] == ["a", "b"]
    (skipped,) = (item for item in found if isinstance(item, SkippedSource))
    assert skipped.source.endswith("corpus.jsonl:3")
    assert expected in skipped.reason


def test_lines_that_are_not_utf8_or_binary(read: Read) -> None:
    found = read("c.jsonl", b'{"_id": "\xe9", "text": "t"}\n{"_id": "1\0"}\n' + line(_id="b", text="t").encode())
    assert [type(item) for item in found] == [SkippedSource, SkippedSource, SourceDocument]
    assert "not UTF-8" in found[0].reason  # type: ignore[union-attr] - its type was just checked
    assert "NUL" in found[1].reason  # type: ignore[union-attr] - its type was just checked


def test_an_overlong_line_is_one_report(read: Read) -> None:
    content = line(_id="a", text="t") + line(_id="big", text="x" * 1000) + line(_id="b", text="t")
    found = read("c.jsonl", content, max_bytes=100)
    assert [getattr(item, "doc_id", "-") for item in found] == ["a", "-", "b"]
    assert isinstance(found[1], SkippedSource)
    assert found[1].source.endswith(":2")
    assert "larger than" in found[1].reason
    assert len(read("d.jsonl", line(_id="big", text="x" * 1000).strip(), max_bytes=100)) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(read: Read, encoding: str) -> None:
    (doc,) = read("c.jsonl", line(_id="ก", text="โฉนด").encode(encoding))
    assert isinstance(doc, SourceDocument)
    assert (doc.doc_id, doc.text) == ("ก", "โฉนด")


def test_lone_surrogates_are_replaced_one_for_one(read: Read) -> None:
    (doc,) = read("c.jsonl", '{"_id": "1", "text": "a\\ud800b\\u0000c"}')
    assert isinstance(doc, SourceDocument)
    assert doc.text == "a\ufffdb\ufffdc"


def test_a_file_of_blank_lines_is_reported(read: Read) -> None:
    (skipped,) = read("c.jsonl", "\n  \n")
    assert isinstance(skipped, SkippedSource)
    assert skipped.reason == "holds only blank lines"


def test_a_record_without_text_or_title_is_a_document_without_text(read: Read) -> None:
    [doc] = read("corpus.jsonl", line(_id="x", text="", title=" "))
    assert isinstance(doc, SourceDocument)
    assert (doc.doc_id, doc.text, chunk_document(doc, ChunkSettings())) == ("x", "", [])
