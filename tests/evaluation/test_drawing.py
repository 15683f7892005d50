import itertools
import math
import re
from html.parser import HTMLParser

import pytest
from evaluation_material import BOAT_QUERIES, BOATS, bench, write_beir
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentic_retriever.evaluation.results import tradeoff_figure
from agentic_retriever.show import Interval, _environment

finite = st.floats(-1e6, 1e6)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    place = tmp_path_factory.mktemp("drawn")
    folders = [write_beir(place / name, BOATS, BOAT_QUERIES) for name in ("a<b>", "harbour")]
    return bench(place, *folders, strategies=["vector", "hybrid", "auto"], views=False)


def texts(page):
    found = []

    class Reader(HTMLParser):
        def handle_data(self, data):
            found.append(data)

    Reader().feed(page)
    return found


def test_a_benchmark_draws_tables_and_intervals(measured):
    page = measured._repr_html_()
    assert page.count("<svg") == 2
    assert page.count("<caption") == 5  # two data sets, their mean, the choice of the index, and that by index
    words = texts(page)
    assert "a<b>: 5 documents, 5 nodes, 2 questions" in words
    for name in measured.names():
        assert name in words
    assert not re.search(r"https?:|<script|<style| on\w+=|#[0-9a-f]{3,6}", page)
    assert set(re.findall(r'(?:fill|stroke)="([^"]*)"', page)) <= {"currentColor", "none"}


def test_the_best_of_each_column_is_bold_and_the_oracle_never(measured):
    page = measured._repr_html_()
    for result in measured.results.values():
        best = max(row.mean() for name, row in result.rows.items() if name != "oracle")
        assert f"<b>{best:.3f}</b>" in page
    for cells in re.findall(r"<tr>(.*?)</tr>", page):
        if ">oracle<" in cells:
            assert "<b>" not in cells


def interval_plot(lines, title):
    return str(_environment().get_template("parts.html").module.intervals(lines, title))


def points(svg):
    """Read the circles and the interval lines of a plot: (x, y) and (x1, x2, y)."""
    circles = [tuple(map(float, one)) for one in re.findall(r'<circle cx="([^"]*)" cy="([^"]*)"', svg)]
    lines = [tuple(map(float, one)) for one in re.findall(r'<line x1="([^"]*)" x2="([^"]*)" y1="([^"]*)"', svg)]
    return circles, lines


@given(st.lists(st.tuples(finite, finite, finite).map(sorted), min_size=1, max_size=6))
def test_points_stand_in_the_order_of_their_means_inside_the_plot(drawn):
    lines = [Interval(name=str(at), low=low, mean=mean, high=high) for at, (low, mean, high) in enumerate(drawn)]
    svg = interval_plot(lines, "title")
    circles, strokes = points(svg)
    width = float(re.search(r'width="(\d+)"', svg)[1])
    assert len(circles) == len(lines)
    assert all(0 <= x <= width for x, _ in circles)
    order = sorted(range(len(lines)), key=lambda at: lines[at].mean)
    placed = [circles[at][0] for at in order]
    assert placed == sorted(placed)
    for x, y in circles:
        [(left, right, _)] = [one for one in strokes if one[2] == y]
        assert left <= x <= right


@given(st.text(max_size=60), st.text(max_size=60))
def test_names_are_text(name, title):
    svg = interval_plot([Interval(name=name, mean=0.5, low=0.4, high=0.6)], title)
    assert re.findall(r"<(\w+)", svg)[:2] == ["svg", "title"]
    assert set(re.findall(r"<(\w+)", svg)) == {"svg", "title", "line", "text", "circle"}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_left_out(bad):
    good = Interval(name="a", mean=0.5, low=0.4, high=0.6)
    for line in (Interval(name="b", mean=bad, low=0.1, high=0.2), Interval(name="b", mean=0.1, low=bad, high=0.2)):
        assert interval_plot([good, line], "t") == interval_plot([good], "t")
        assert interval_plot([line], "t") == ""


def test_equal_ends_can_be_drawn():
    assert "<circle" in interval_plot([Interval(name="a", mean=1.0, low=1.0, high=1.0, hollow=True)], "t")


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1e-3)), min_size=1, max_size=30))
def test_labels_of_intervals_do_not_overlap(drawn):
    lines = [Interval(name="n" * 60, low=mean - off, mean=mean, high=mean + off) for mean, off in drawn]
    svg = interval_plot(lines, "title")
    boxes = []
    for x, y, anchor, words in re.findall(r'<text x="([^"]*)" y="([^"]*)"( text-anchor="middle")?[^>]*>([^<]*)<', svg):
        wide = 5.5 * len(words)  # of a letter of 11 pixels
        left = float(x) - (wide / 2 if anchor else 0)
        boxes.append((left, float(y) - 9, left + wide, float(y) + 2))
    assert len(boxes) > 2 * len(lines)
    assert not overlapping(boxes)


class Measured:
    """A row of a benchmark as far as the plot looks at it."""

    peer = False

    def __init__(self, ms, quality):
        self.ms, self.quality = ms, quality
        self.intervals = {"nDCG@10": (quality - 0.05, quality + 0.05)}

    def percentile_ms(self, _percent):
        return self.ms

    def mean(self):
        return self.quality


def overlapping(boxes):
    pairs = itertools.combinations(boxes, 2)
    return [(a, b) for a, b in pairs if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]]


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 5_000), st.floats(0, 1)), min_size=1, max_size=16), st.booleans())
@example([(0.01, 0.5), (5_000.0, 0.5)], True)
@example([(10.0, 0.5)] * 16, True)  # all at one place
@example([(10.0 + at / 100, 0.5 + at / 1_000) for at in range(16)], False)
def test_no_two_labels_of_the_plot_overlap(measured, with_oracle):
    text = pytest.importorskip("matplotlib.text")
    rows = {f"chunk_decoupling {at}": Measured(*one) for at, one in enumerate(measured)}
    if with_oracle:
        rows["oracle"] = Measured(1.0, 1.0)
    figure = tradeoff_figure(rows)
    figure.draw_without_rendering()
    [axes] = figure.axes
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    below = [one for one in axes.get_xticklabels(which="both") if left <= one.get_position()[0] <= right]
    beside = [one for one in axes.get_yticklabels() if low <= one.get_position()[1] <= high]
    names = figure.legends[0].get_texts()
    words = [*below, *beside, *names, axes.xaxis.label, axes.yaxis.label]
    boxes = [tuple(text.Text.get_window_extent(one).extents) for one in words if one.get_text()]
    assert {*rows, "Pareto front"} == {one.get_text() for one in names}
    assert not overlapping(boxes)
    assert all(box[0] >= 0 and box[2] <= figure.bbox.x1 for box in boxes)
