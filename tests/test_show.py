import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_up_values import answer, decision, found, selection

from agentic_retriever.catalog.records import Analytics, RouteCount
from agentic_retriever.indices import IndexProfile
from agentic_retriever.indices.ingest import IngestReport
from agentic_retriever.ingestion import SkippedSource
from agentic_retriever.pipeline.answers import Explanation
from agentic_retriever.schema import Retrieval, SentenceCheck, Strategy
from agentic_retriever.show import Cell, Section, duration, render, shortened

TAGS = {"div", "span", "b", "q", "a", "ol", "li", "pre", "details", "summary", "table", "caption", "thead", "tbody",
        "tr", "th", "td", "svg", "rect"}  # fmt: skip
ATTRIBUTES = {"class", "style", "title", "href", "id", "dir", "width", "height", "rx", "fill", "opacity", "role",
              "aria-label"}  # fmt: skip
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

pieces = st.sampled_from(
    ["<script>alert(1)</script>", "</div>", "' onload='x", '" onclick="x', "javascript:alert(1)", "<img onerror=1>",
     "[1]", "[2]", "[99]", "&lt;", "&#60;", "$5 to $6", "\x1b[31m", "\u202e", "\ud800", "\x00", "<!--", "]]>", "<svg"]
)  # fmt: skip
wild = st.lists(st.one_of(st.text(max_size=12), pieces), max_size=6).map("".join)


class Seen(HTMLParser):
    """What a browser would see: elements with their attributes, and the text between them."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.words, self.open, self.others = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def handle_comment(self, data):
        self.others.append(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def check_harmless(page):
    seen = Seen(page)
    assert not seen.open
    assert not seen.others
    ids = {attrs["id"] for _, attrs in seen.elements if "id" in attrs}
    for tag, attrs in seen.elements:
        assert tag in TAGS
        assert set(attrs) <= ATTRIBUTES
        assert not any(name.startswith("on") for name in attrs)
        assert "url(" not in attrs.get("style", "")
        if "href" in attrs:
            assert attrs["href"][0] == "#"
            assert attrs["href"][1:] in ids
    assert not CONTROL.search(page)
    assert not CONTROL.search("".join(seen.words))
    page.encode("utf-8")
    return seen


def profile(t):
    return IndexProfile(
        name=t, description=t, version=1, nodes=3, language=t, description_vector=[], sample=[],
        document_frequency={t: 2}, field_values={t: frozenset({t})}, number_ranges={t: (0.0, 1.0)},
        identifiers={t: frozenset({t})},
    )  # fmt: skip


def values(t):
    """One of everything that draws itself here, with a text wherever a text goes."""
    doubted = SentenceCheck(start=1, end=len(t), text=t, supported=False, score=0.0, problems=(t,))
    left_out = SentenceCheck(start=0, end=0, text=t, supported=False, score=0.0)
    return {
        "answer": answer(t, checks=(doubted, left_out)),
        "retrieval": Retrieval(
            nodes=(found(t),), strategy=Strategy.VECTOR, indexes=(t,), route=decision(t), understood=(t,)
        ),
        "decision": decision(t), "selection": selection(t), "diff": decision(t).diff(decision("x")),
        "explanation": Explanation(decision=decision(t)), "profile": profile(t),
        "report": IngestReport(added=1, skipped=(SkippedSource(t, t),)),
        "analytics": Analytics(
            queries=2, routes=(RouteCount(index=t, strategy=t, queries=1),), tiers={t: 1}, errors={t: 1}
        ),
    }  # fmt: skip


@given(wild)
def test_no_text_becomes_markup(t):
    for value in values(t).values():
        seen = check_harmless(value._repr_html_())
        assert "mathjax_ignore" in seen.elements[0][1]["class"], "dollars in a text are no formula"


@given(wild)
def test_a_text_never_changes_what_is_drawn_around_it(t):
    """Elements and attributes are those of a harmless text; markers in the text of an answer apart, which are links."""
    t = "t" + t.replace("[", "(") + "t"  # neither empty nor white space, which are drawn as nothing
    for name in ("retrieval", "decision", "selection", "profile", "report", "answer"):
        drawn = [Seen(values(one)[name]._repr_html_()).elements for one in (t, "harmless")]
        shapes = [[(tag, tuple(attrs)) for tag, attrs in elements] for elements in drawn]
        assert shapes[0] == shapes[1], name


@given(wild)
def test_nothing_but_control_characters_is_lost(t):
    words = "".join(Seen(render("text.html", text=t)).words)
    assert words == re.sub("[\ud800-\udfff]", "\ufffd", re.sub(CONTROL.pattern.replace("\ud800-\udfff", ""), "", t))


@given(st.integers(0, 12), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=5))
@example(1, [(0, 20)])  # a span that ends within a marker takes its link, and nothing of the text
def test_the_text_of_an_answer_is_whole_whatever_the_checks_say(number, spans):
    words = f"One [1] two, three [{number}] and four $5."
    checks = tuple(
        SentenceCheck(start=start, end=end, text="x", supported=False, score=0.0, problems=("why",))
        for start, end in spans
    )
    page = answer("x", words=words, checks=checks)._repr_html_()
    assert "".join(Seen(page).words).startswith(words)
    linked, markers = page.count('href="#'), [found.span() for found in re.finditer(r"\[\d+\]", words)]
    assert linked <= 1 + (number in {1, 2})
    is_cut = any(begin < at < end for begin, end in markers for span in spans for at in span)
    assert is_cut or linked == 1 + (number in {1, 2})


def test_an_answer_says_how_sure_it_is_how_it_came_about_and_where_its_markers_lead():
    page = "".join(Seen(answer("x")._repr_html_()).words)
    for said in ("high 0.90", "x › x", "primary", "0.00100 USD", "1.2 s", "Fell back: x to x: x", "10 tokens"):
        assert said in page
    assert "from the cache" in "".join(Seen(replace(answer("x"), cached=True)._repr_html_()).words)
    page = answer("Gate B", words="It closes at nine. [2]")._repr_html_()
    [(_, link)] = [one for one in Seen(page).elements if one[0] == "a"]
    assert link["title"] == "Gate B › Gate B: Gate B"
    items = [attrs["id"] for tag, attrs in Seen(page).elements if tag == "li"]
    assert (link["href"], len(set(items))) == (f"#{items[1]}", 2)


def test_unsupported_sentences_are_marked_and_drawings_fit_into_a_notebook_file():
    text_ = "Right. Wrong [1]."
    check = SentenceCheck(start=7, end=12, text="Wrong", supported=False, score=0.1, problems=("no passage says so",))
    gone = SentenceCheck(start=17, end=17, text="Invented.", supported=False, score=0.0, problems=("not found",))
    page = answer("x", words=text_, checks=(check, gone))._repr_html_()
    [marked] = [attrs for tag, attrs in Seen(page).elements if "wavy" in attrs.get("style", "")]
    assert marked["title"] == "Not supported: no passage says so"
    assert "Left out: “Invented.” (not found)" in "".join(Seen(page).words)
    output = {"text/html": answer("\ud800\x00 [1]")._repr_html_()}
    assert json.loads(json.dumps(output, ensure_ascii=False).encode("utf-8")) == output


def test_colours_are_those_of_the_theme():
    page = "".join(value._repr_html_() for value in values("x").values())
    for style in re.findall(r'style="([^"]*)"', page):
        assert not re.search(r"(?:^|;)\s*background", style)
        assert re.sub(r"var\(--jp-[\w-]+, rgba\(128,128,128,\.4\)\)", "", style).count("rgb") == 0
        assert not re.search(r"#[0-9a-fA-F]{3,8}", style)
    assert set(re.findall(r'(?:fill|stroke)="([^"]*)"', page)) == {"currentColor"}
    assert not re.search(r"https?:|<script|<style|@import|src=", page)


def test_texts_lists_and_bars_keep_to_their_ground_and_times_are_written_for_people():
    assert (shortened(" a \n b ", 5), shortened("abcdef", 4)) == ("a b", "abc…")
    assert [duration(ms) for ms in (0.04, 9.94, 12.3, 1234.0)] == ["0.0 ms", "9.9 ms", "12 ms", "1.2 s"]
    many = IngestReport(skipped=tuple(SkippedSource(f"s{at}", "why") for at in range(40)))
    assert "and 28 more left out" in many._repr_html_()
    assert "and 28 more" in replace(selection("x"), scores={f"index{at}": 1 / 40 for at in range(40)})._repr_html_()
    nodes = tuple(found(str(at)) for at in range(30))
    assert "and 10 more" in replace(values("x")["retrieval"], nodes=nodes)._repr_html_()
    assert "no difference" in decision("x").diff(decision("x"))._repr_html_()
    for share, width in [(-1.0, 0), (0.5, 40), (2.0, 80), (float("nan"), 0), (float("inf"), 0)]:
        assert f'<rect width="{width}"' in render(
            "tables.html", tables=[Section("", ["a"], [[Cell("x", share=share)]])]
        )


@pytest.mark.parametrize("name", list(values("x")))
def test_the_plain_text_beside_a_drawing_is_short_and_harmless(name):
    formatted = pytest.importorskip("IPython.lib.pretty").pretty(values("x" * 9_000 + "\x1b[31m")[name])
    assert len(formatted) <= 2_000
    assert "\x1b" not in formatted
