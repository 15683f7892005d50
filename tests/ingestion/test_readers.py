from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion import SUPPORTED_SUFFIXES, SkippedSource, SourceDocument, discover, read_source

Read = Callable[..., list[SourceDocument | SkippedSource]]
WORDS = "Señalización luminosa: obligatoria. "


def reason(read: Read, name: str, content: bytes | str, **options: int) -> str:
    (skipped,) = read(name, content, **options)
    assert isinstance(skipped, SkippedSource)
    assert skipped.source.endswith(name)
    return skipped.reason


def document(read: Read, name: str, content: bytes | str) -> SourceDocument:
    (doc,) = read(name, content)
    assert isinstance(doc, SourceDocument)
    return doc


def test_a_folder_is_walked_sorted_without_hidden_and_foreign_files(tmp_path: Path) -> None:
    names = ["b.md", "a/z.TXT", "a/c.jsonl", ".hidden.md", ".git/x.md", "a/image.png", "a/b/c/d.html", "noext"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [path.relative_to(tmp_path).as_posix() for path in discover(tmp_path)]
    assert found == ["a/b/c/d.html", "a/c.jsonl", "a/z.TXT", "b.md"]


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.md").write_text("x")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again").symlink_to(tmp_path / "a", target_is_directory=True)
    assert [path.name for path in discover(tmp_path)] == ["x.md"]


def test_a_file_is_itself_even_hidden(tmp_path: Path) -> None:
    path = tmp_path / ".notes.md"
    path.write_text("x")
    assert discover(path) == [path]


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="absent cannot be read: No such file or directory; check"):
        discover(tmp_path / "absent")


def refuse(monkeypatch: pytest.MonkeyPatch, function: str, refused: Path) -> None:
    """Make the operating system refuse one path: file modes mean nothing to the superuser."""
    original = getattr(os, function)

    def guarded(path: object, *args: object, **kwargs: object) -> object:
        if Path(str(path)) == refused:
            raise PermissionError(13, "Permission denied", str(refused))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(os, function, guarded)


def test_a_folder_without_permission_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "scandir", tmp_path)
    with pytest.raises(SourceError, match="Permission denied; check that it exists and its permissions"):
        discover(tmp_path)


def test_a_folder_inside_without_permission_is_reported_and_the_rest_goes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.md").write_text("x")
    refuse(monkeypatch, "scandir", tmp_path / "locked")
    found = discover(tmp_path)
    assert found == [tmp_path / "a.md", tmp_path / "locked"]
    (skipped,) = read_source(found[1], root=tmp_path)
    assert isinstance(skipped, SkippedSource)
    assert "folder that cannot be listed" in skipped.reason


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.pdf", "a.jsonl"])
def test_a_file_without_permission_is_reported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    path.write_text("x")

    def refused(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "read_bytes", refused)
    (skipped,) = read_source(path, root=tmp_path)
    assert isinstance(skipped, SkippedSource)
    assert skipped == SkippedSource(str(path), skipped.reason)
    assert "cannot be read: Permission denied" in skipped.reason


@pytest.mark.parametrize("suffix", SUPPORTED_SUFFIXES)
def test_an_empty_file_is_reported(read: Read, suffix: str) -> None:
    assert reason(read, f"a{suffix}", b"") == "is empty"


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.jsonl"])
@pytest.mark.parametrize("content", [b"\x89PNG\r\n\0\0\0\rIHDR\0", b"\xff\xfe\0"])
def test_binary_content_is_reported(read: Read, name: str, content: bytes) -> None:
    skipped = [found for found in read(name, content) if isinstance(found, SkippedSource)]
    assert skipped
    assert len(skipped) == len(read(name, content))


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes among the files there")
def test_broken_links_pipes_and_vanished_files_are_reported(tmp_path: Path) -> None:
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


def test_a_file_of_another_kind_is_reported(read: Read) -> None:
    assert "allowed are .md, .markdown, .txt" in reason(read, "a.docx", "x")


def test_a_file_above_the_limit_is_reported(read: Read) -> None:
    assert reason(read, "a.txt", "x" * 101, max_bytes=100) == "is larger than 0.0001 MB; split it or raise max_file_mb"
    assert isinstance(read("b.txt", "x" * 100, max_bytes=100)[0], SourceDocument)


def test_ids_and_places(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "my_long-note.txt"
    path.parent.mkdir()
    path.write_text(WORDS)
    (below,) = read_source(path, root=tmp_path)
    (itself,) = read_source(path, root=path)
    assert isinstance(below, SourceDocument)
    assert isinstance(itself, SourceDocument)
    assert (below.doc_id, below.source, below.root) == ("sub/my_long-note.txt", str(path), str(tmp_path))
    assert (itself.doc_id, itself.root) == ("my_long-note.txt", str(path))
    assert below.title == "my long note"


def test_a_relative_root_gives_the_same_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(WORDS)
    monkeypatch.chdir(tmp_path)
    (doc,) = read_source(Path("a.txt"), root=Path())
    assert isinstance(doc, SourceDocument)
    assert (doc.doc_id, doc.source) == ("a.txt", str(tmp_path / "a.txt"))


@pytest.mark.skipif(os.name == "nt", reason="file names are always Unicode there")
def test_a_file_name_that_is_no_utf8_can_still_be_stored(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    Path(os.fsdecode(path)).write_text(WORDS)
    (found,) = discover(tmp_path)
    (doc,) = read_source(found, root=tmp_path)
    assert isinstance(doc, SourceDocument)
    assert doc.doc_id == "caf\\xe9.txt"
    doc.source.encode()


@pytest.mark.parametrize(
    "data",
    [
        WORDS.encode(),
        b"\xef\xbb\xbf" + WORDS.encode(),
        WORDS.encode("utf-16"),
        b"\xfe\xff" + WORDS.encode("utf-16-be"),
        WORDS.encode("utf-32"),
        WORDS.encode("latin-1"),
        WORDS.encode("cp1252"),
    ],
)
def test_encodings(read: Read, data: bytes) -> None:
    assert document(read, "a.txt", data).text == WORDS


def test_line_ends_are_translated_and_nothing_else(read: Read) -> None:
    assert document(read, "a.txt", "  a\r\nb\rc\u2028d\x0c \n\n").text == "  a\nb\nc\u2028d\x0c \n\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("โฉนดที่ดิน".encode("cp874"), "UTF-8"),
        ("Привет мир".encode("cp1251"), "UTF-8"),
        (b"abc \x81 def", "neither UTF-8 nor Windows-1252"),
        (b"abc \x01\x02\xe9 def", "does not look like"),
        (b"\xff\xfea", "not valid"),
        (b"  \n\t ", "only white space"),
    ],
)
def test_what_cannot_be_decoded_is_reported(read: Read, data: bytes, expected: str) -> None:
    assert expected in reason(read, "a.txt", data)


def test_markdown_titles(read: Read) -> None:
    assert document(read, "a.md", "---\ntitle: Front\n---\n# Heading\n\ntext").title == "Front"
    assert document(read, "a.md", "intro\n\n# The *heading*\n\ntext").title == "The heading"
    assert document(read, "a_b.md", "## Lower\n\ntext").title == "a b"


def test_front_matter_becomes_metadata_and_stays_in_the_text(read: Read) -> None:
    doc = document(read, "a.md", "---\ntitle: T\nyear: 2020\ntags: [a, b]\ndraft: ~\n---\ntext")
    assert doc.metadata == {"title": "T", "year": 2020, "tags": ["a", "b"]}
    assert doc.text.startswith("---\ntitle")
    assert doc.kind == "md"


def test_front_matter_alone_and_reserved_keys_are_reported(read: Read) -> None:
    assert reason(read, "a.md", "---\na: 1\n---\n\n") == "has front matter but no text"
    assert "'doc_id' is reserved" in reason(read, "a.md", "---\ndoc_id: 7\n---\ntext")


def test_the_content_hash_follows_everything_that_nodes_are_made_of(make_doc: Callable[..., SourceDocument]) -> None:
    base = make_doc("text", metadata={"a": 1, "b": [1]})
    assert base.content_hash == make_doc("text", metadata={"b": [1], "a": 1}, source="/elsewhere").content_hash
    others = [
        make_doc("Text", metadata=base.metadata),
        make_doc("text", metadata={"a": 2, "b": [1]}),
        make_doc("text", metadata={"a": "1", "b": [1]}),
        make_doc("text", metadata=base.metadata, title="T"),
        make_doc("text", metadata=base.metadata, kind="txt"),
    ]
    assert len({base.content_hash, *(doc.content_hash for doc in others)}) == 6
