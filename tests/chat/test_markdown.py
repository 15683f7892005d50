"""Answers as Markdown: marks become footnotes wherever a stream is cut, and documents bring in nothing of their own."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="the extra 'service' is not installed")

from agentic_retriever.schema import Citation
from agentic_retriever.service.openai import Markdown, footnote, side_reply

NOTHING = SimpleNamespace(citations=())


def shown(pieces):
    markdown = Markdown()
    return "".join([*map(markdown.feed, pieces), markdown.end(NOTHING)])


@given(st.text(alphabet="a [](!0123<^]\\", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_where_a_text_is_cut_makes_no_difference(text, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert shown([text[start:end] for start, end in pairwise(edges)]) == shown([text])


@pytest.mark.parametrize(("text", "markdown"), [
    ("Sixteen. [1][12]", "Sixteen. [^1][^12]"), ("![x](http://evil/?q=1)", "!\\[x](http://evil/?q=1)"),
    ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)>"),
    ("see [1](http://evil)", "see [^1](http://evil)"), ("![1] \\[2]", "!\\[1] \\[2]"), ("an end [", "an end ["),
])  # fmt: skip
def test_marks_images_and_html(text, markdown):
    assert (shown([text]), shown(text)) == (markdown, markdown)


def test_footnotes_are_one_line_without_markup():
    citation = Citation(
        number=3, doc_id="d", node_id="n", start=0, end=9, score=1.0, title="A *title*", section="1 <b>", page=4,
        quote="![x](http://evil)\n\n| a | `b`",
    )  # fmt: skip
    note = footnote(citation)
    assert "\n" not in note
    assert note.startswith("[^3]: A \\*title\\* › 1 \\<b\\>, p. 4: “\\!\\[x\\]\\(http://evil\\) \\| a \\| \\`b\\`")


@pytest.mark.parametrize(
    "asked", [QUESTION := "How long does a cat sleep?", "What is a task?", "", "Title?", "### Tasks"]
)
def test_questions_are_no_tasks(asked):
    assert side_reply(asked, asked) is None
