from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from agentic_retriever.errors import ConfigError, EvaluationError
from agentic_retriever.evaluation.measures import compare, fold_to_documents, measure_reliability, ndcg_by_query
from agentic_retriever.evaluation.plots import check_plot, draw_reliability

NAMES = st.sampled_from(["a", "b", "c", "d"])
PAIRS = st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=40)


@given(PAIRS)
def test_classification_equals_brute_force(pairs):
    outcomes = compare([g for g, _ in pairs], [c for _, c in pairs])
    assert outcomes.total == len(pairs)
    assert outcomes.accuracy == pytest.approx(sum(g == c for g, c in pairs) / len(pairs))
    recalls, scores = [], []
    for name in sorted({g for g, _ in pairs}):
        hits = sum(g == c == name for g, c in pairs)
        asked, answered = sum(g == name for g, _ in pairs), sum(c == name for _, c in pairs)
        precision, recall = hits / answered if answered else 0.0, hits / asked
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        recalls.append(recall)
        scores.append(f1)
        row = outcomes.by_label()[name]
        assert (row["count"], row["precision"], row["recall"]) == (asked, precision, recall)
        assert row["f1"] == pytest.approx(f1)
    assert outcomes.macro_accuracy == pytest.approx(np.mean(recalls))
    assert outcomes.macro_f1 == pytest.approx(np.mean(scores))
    table = outcomes.confusion()
    for g in "abcd":
        for c in "abcd":
            assert table.get(g, {}).get(c, 0) == sum(pair == (g, c) for pair in pairs)


def test_nothing_to_compare():
    outcomes = compare([], [])
    assert (outcomes.accuracy, outcomes.macro_accuracy, outcomes.macro_f1, outcomes.confusion()) == (
        None,
        None,
        None,
        {},
    )
    with pytest.raises(ValueError, match="as many"):
        compare(["a"], [])


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.booleans(), st.floats(0.1, 5)),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 20),
)
def test_calibration_error_equals_brute_force(rows, bins):
    found = measure_reliability(
        [c for c, _, _ in rows], [r for _, r, _ in rows], bins=bins, weights=[w for _, _, w in rows]
    )
    total, expected = sum(w for _, _, w in rows), 0.0
    for at in range(bins):
        inside = [row for row in rows if min(bins - 1, math.floor(row[0] * bins)) == at]
        assert found.bins[at].count == len(inside)
        if not inside:
            assert found.bins[at].confidence is found.bins[at].accuracy is None
            continue
        mass = sum(w for _, _, w in inside)
        confidence = sum(c * w for c, _, w in inside) / mass
        accuracy = sum(r * w for _, r, w in inside) / mass
        assert found.bins[at].confidence == pytest.approx(confidence)
        expected += mass / total * abs(accuracy - confidence)
    assert found.ece == pytest.approx(expected, abs=1e-9)
    assert sum(one.weight for one in found.bins) == pytest.approx(1)


def test_calibration_of_known_cases():
    assert measure_reliability([0.8] * 5, [True] * 4 + [False]).ece == pytest.approx(0)
    assert measure_reliability([1.0] * 4, [True, False, False, False]).ece == pytest.approx(0.75)
    assert measure_reliability([], []).ece is None
    for bad in ([1.1], [-0.1], [math.nan]):
        with pytest.raises(ValueError, match="in \\[0, 1\\]"):
            measure_reliability(bad, [True])


def ndcg(ranking, grades, cutoff=10):
    gains = [grades.get(doc_id, 0) for doc_id in ranking[:cutoff]]
    ideal = sorted(grades.values(), reverse=True)[:cutoff]
    discounted = [sum(g / math.log2(at + 2) for at, g in enumerate(values)) for values in (gains, ideal)]
    return discounted[0] / discounted[1] if discounted[1] else 0.0


DOCS = [f"d{at}" for at in range(14)]


@given(
    st.dictionaries(st.sampled_from(DOCS), st.integers(0, 3), min_size=1),
    st.lists(st.sampled_from(DOCS), unique=True, max_size=14),
)
def test_ndcg_equals_brute_force(grades, ranking):
    pytest.importorskip("ir_measures")
    found = ndcg_by_query({"q": grades, "nobody answered": {"d1": 1}}, {"q": ranking, "not asked": ["d1"]})
    assert found == {"q": pytest.approx(ndcg(ranking, grades), abs=1e-6), "nobody answered": 0.0}


def node(node_id, doc_id, score):
    relationships = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)} if doc_id else {}
    return NodeWithScore(node=TextNode(id_=node_id, text="x", relationships=relationships), score=score)


def test_a_document_counts_by_its_best_node():
    nodes = [
        node("n1", "a", 0.5),
        node("n2", "b", 0.4),
        node("n3", "b", 0.9),
        node("n4", None, 0.45),
        node("n5", "c", 0.5),
    ]
    assert fold_to_documents(nodes) == ["b", "a", "c", "n4"]
    assert fold_to_documents([]) == []


def without(monkeypatch, missing):
    real = importlib.import_module

    def load(name, *args):
        if name.split(".")[0] == missing:
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", load)


def test_missing_libraries_name_the_extra(monkeypatch, tmp_path):
    without(monkeypatch, "ir_measures")
    with pytest.raises(ConfigError, match="extra 'bench'"):
        ndcg_by_query({"q": {"d": 1}}, {})
    without(monkeypatch, "matplotlib")
    with pytest.raises(ConfigError, match="extra 'bench'"):
        check_plot(tmp_path / "a.svg")


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("b.PNG", b"\x89PNG")])
def test_diagrams(tmp_path, name, start):
    pytest.importorskip("matplotlib")
    measured = {
        way: measure_reliability([0.1, 0.6, 0.9, 0.95], [False, True, True, False]) for way in ("one", "two", "x", "y")
    }
    draw_reliability(measured, tmp_path / name)
    first = (tmp_path / name).read_bytes()
    assert first.startswith(start)
    draw_reliability(measured, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_diagram_of_unknown_format(tmp_path):
    with pytest.raises(EvaluationError, match=r"\.svg or \.png"):
        draw_reliability({}, tmp_path / "a.gif")
