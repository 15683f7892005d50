from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import within

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion import SUPPORTED_SUFFIXES, SkippedSource, SourceDocument, discover, read_source
from agentic_retriever.ingestion.documents import parse_front_matter

WORDS = "Señalización luminosa: obligatoria. "


def test_a_folder_is_walked_sorted_without_hidden_and_foreign_files(tmp_path):
    names = ["b.md", "a/z.TXT", "a/c.jsonl", ".hidden.md", ".git/x.md", "a/image.png", "a/b/c/d.html", "noext"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [path.relative_to(tmp_path).as_posix() for path in discover(tmp_path)]
    assert found == ["a/b/c/d.html", "a/c.jsonl", "a/z.TXT", "b.md"]


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.md").write_text("x")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again").symlink_to(tmp_path / "a", target_is_directory=True)
    assert [path.name for path in discover(tmp_path)] == ["x.md"]


def test_a_file_is_itself_even_hidden(tmp_path):
    path = tmp_path / ".notes.md"
    path.write_text("x")
    assert discover(path) == [path]


def test_a_missing_path_is_an_error(tmp_path):
    with pytest.raises(SourceError, match="absent cannot be read: No such file or directory; check"):
        discover(tmp_path / "absent")


def refuse(monkeypatch, function, refused):
    """Make the operating system refuse one path: file modes mean nothing to the superuser."""
    original = getattr(os, function)

    def guarded(path, *args, **kwargs):
        if Path(str(path)) == refused:
            raise PermissionError(13, "Permission denied", str(refused))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(os, function, guarded)


def test_a_folder_without_permission_is_an_error(tmp_path, monkeypatch):
    refuse(monkeypatch, "scandir", tmp_path)
    with pytest.raises(SourceError, match="Permission denied; check that it exists and its permissions"):
        discover(tmp_path)


def test_a_folder_inside_without_permission_is_reported_and_the_rest_goes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.md").write_text("x")
    refuse(monkeypatch, "scandir", tmp_path / "locked")
    found = discover(tmp_path)
    assert found == [tmp_path / "a.md", tmp_path / "locked"]
    (skipped,) = read_source(found[1], root=tmp_path)
    assert isinstance(skipped, SkippedSource)
    assert "folder that cannot be listed" in skipped.reason


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.pdf", "a.jsonl"])
def test_a_file_without_permission_is_reported(name, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_text("x")

    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "read_bytes", refused)
    (skipped,) = read_source(path, root=tmp_path)
    assert isinstance(skipped, SkippedSource)
    assert skipped == SkippedSource(str(path), skipped.reason)
    assert "cannot be read: Permission denied" in skipped.reason


@pytest.mark.parametrize("suffix", SUPPORTED_SUFFIXES)
def test_an_empty_file_is_reported(reason, suffix):
    assert reason(f"a{suffix}", b"") == "is empty"


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


def test_a_file_of_another_kind_is_reported(reason):
    assert "allowed are .md, .markdown, .txt" in reason("a.docx", "x")


def test_a_file_above_the_limit_is_reported(reason, read):
    assert reason("a.txt", "x" * 101, max_bytes=100) == "is larger than 0.0001 MB; split it or raise max_file_mb"
    assert isinstance(read("b.txt", "x" * 100, max_bytes=100)[0], SourceDocument)


def test_ids_and_places(tmp_path):
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


def test_a_relative_root_gives_the_same_id(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(WORDS)
    monkeypatch.chdir(tmp_path)
    (doc,) = read_source(Path("a.txt"), root=Path())
    assert isinstance(doc, SourceDocument)
    assert (doc.doc_id, doc.source) == ("a.txt", str(tmp_path / "a.txt"))


@pytest.mark.skipif(os.name == "nt", reason="file names are always Unicode there")
def test_a_file_name_that_is_no_utf8_can_still_be_stored(tmp_path):
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
def test_encodings(read_one, data):
    assert read_one("a.txt", data).text == WORDS


def test_line_ends_are_translated_and_nothing_else(read_one):
    assert read_one("a.txt", "  a\r\nb\rc\u2028d\x0c \n\n").text == "  a\nb\nc\u2028d\x0c \n\n"


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
def test_what_cannot_be_decoded_is_reported(reason, data, expected):
    assert expected in reason("a.txt", data)


def test_markdown_titles(read_one):
    assert read_one("a.md", "---\ntitle: Front\n---\n# Heading\n\ntext").title == "Front"
    assert read_one("a.md", "intro\n\n# The *heading*\n\ntext").title == "The heading"
    assert read_one("a_b.md", "## Lower\n\ntext").title == "a b"


def test_front_matter_becomes_metadata_and_stays_in_the_text(read_one):
    doc = read_one("a.md", "---\ntitle: T\nyear: 2020\ntags: [a, b]\ndraft: ~\n---\ntext")
    assert doc.metadata == {"title": "T", "year": 2020, "tags": ["a", "b"]}
    assert doc.text.startswith("---\ntitle")
    assert doc.kind == "md"


def test_front_matter_alone_and_reserved_keys_are_reported(reason):
    assert reason("a.md", "---\na: 1\n---\n\n") == "has front matter but no text"
    assert "'doc_id' is reserved" in reason("a.md", "---\ndoc_id: 7\n---\ntext")


def test_the_content_hash_follows_everything_that_nodes_are_made_of(make_doc):
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


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a: text", "a", "text"),
        ("a: 12", "a", 12),
        ("a: -3", "a", -3),
        ("a: 007", "a", "007"),
        ("a: 1.5", "a", 1.5),
        ("a: 1e5", "a", "1e5"),
        ("a: true", "a", True),
        ("a: null", "a", None),
        ("a:", "a", None),
        ('a: "12"', "a", "12"),
        ("a: 'it''s'", "a", "it's"),
        ('a: "x \\"y\\" # z"', "a", 'x "y" # z'),
        ("a: 2024-05-01", "a", "2024-05-01"),
        ("a: http://x.y/z", "a", "http://x.y/z"),
        ("a: text # comment", "a", "text"),
        ("a: [1, two, 'three, four']", "a", [1, "two", "three, four"]),
        ("a: []", "a", []),
        ("a:\n  - one\n  - 2", "a", ["one", 2]),
        ("a:\n- one\n- two: x", "a", ["one", {"two": "x"}]),
        ("a: |\n  first\n  second", "a", "first\nsecond"),
        ("a:\n  b: 1\n  c: 2", "a", {"b": 1, "c": 2}),
        ("año de emisión: 2020", "año de emisión", 2020),
        ("a: {b: 1}", "a", {"b": 1}),
        ("a: >\n  folded\n  text", "a", "folded text"),
        ("2020: 1", "2020", 1),
        ("a: yes", "a", "yes"),
        ("a: 12:30", "a", "12:30"),
        # What is no YAML, or more than plain data, stays as it was written.
        ("a: Part 1: lights", "a", "Part 1: lights"),
        ("a: [draft] Lights", "a", "[draft] Lights"),
        ("a: *emphasis*", "a", "*emphasis*"),
        ("a: @someone", "a", "@someone"),
        ("a: &x [*x]", "a", "&x [*x]"),
        ("a: !!python/object/apply:os.system [ls]", "a", "!!python/object/apply:os.system [ls]"),
        ("a: !!int none", "a", "!!int none"),
        ("a: " + "[" * 50_000, "a", "[" * 50_000),
        ('"quoted": 1', "quoted", 1),
        ("# comment\n\na: 1", "a", 1),
    ],
)
def test_values_of_front_matter(line, key, value):
    found = parse_front_matter(f"---\n{line}\n---\nbody")
    assert found is not None
    assert dict(found.values) == {key: value}
    assert type(found.values[key]) is type(value)


def test_the_body_begins_behind_it():
    text = "---  \na: 1\n...\nbody"
    found = parse_front_matter(text)
    assert found is not None
    assert text[found.end :] == "body"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "body",
        "---\n",
        "---\nno key here\n---\n",
        "---\n---\n",
        "a\n---\nb: 1\n---\n",
        "---\na: 1\n",
        " ---\na: 1\n---\n",
    ],
)
def test_what_is_no_front_matter(text):
    assert parse_front_matter(text) is None


def test_a_value_that_is_no_yaml_costs_no_other_one():
    found = parse_front_matter("---\na: b: c\ny: &x [1, 1]\nz: [*x, *x]\nn: 1\n---\nbody")
    assert found is not None
    assert dict(found.values) == {"a": "b: c", "y": [1, 1], "z": "[*x, *x]", "n": 1}


@given(st.text(alphabet="ab:-[]\"'\n #|\\1.", max_size=60))
def test_any_text_is_read_without_error(text):
    found = parse_front_matter(f"---\nk: 1\n{text}\n---\nbody")
    assert found is not None
    assert found.end > len("---")


def test_an_unclosed_block_is_not_searched_for_ever():
    with within(1):
        assert parse_front_matter("---\n" + "a: 1\n" * 1_000_000) is None
