from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest
from evaluation_material import BOAT_QUERIES, BOATS, DIMENSION, write_beir
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever import RouterConfig
from agentic_retriever.evaluation import benchmark
from agentic_retriever.evaluation.interval_plot import Interval, interval_plot
from agentic_retriever.testing import FakeEmbedding

finite = st.floats(-1e6, 1e6)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    place = tmp_path_factory.mktemp("drawn")
    folders = [write_beir(place / name, BOATS, BOAT_QUERIES) for name in ("a<b>", "harbour")]
    return benchmark(
        RouterConfig(data_dir=place / "data"),
        *folders,
        embedding=FakeEmbedding(dimension=DIMENSION),
        strategies=["vector", "hybrid", "auto"],
        views=False,
    )


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
    assert page.count("<caption") == 3  # two data sets and their mean
    words = texts(page)
    assert "a<b>: 2 questions" in words
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
