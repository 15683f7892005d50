from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_material import make_card

from agentic_retriever.errors import EvaluationError, NoEligibleStrategyError, StoreDamagedError
from agentic_retriever.routing import (
    HeuristicSelector,
    LearnedSelector,
    StrategyModel,
    StrategySelector,
    TrainedOn,
    TrainingRow,
    cross_validate,
    fit_strategy_model,
)
from agentic_retriever.schema import Strategy

V, H, P = Strategy.VECTOR, Strategy.HYBRID, Strategy.PLANNER
MS = {V: 2.0, H: 9.0, P: 80.0}
ORIGIN = TrainedOn(dataset="d", index="i", index_version=3, rows=0, date="2026-01-01")


def rows(n: int, seed: int, *, signal: float, noise: float = 0.1, bias: float = 0.05) -> list[TrainingRow]:
    """Questions of which one feature tells by how much hybrid beats vector, among features that tell nothing."""
    draw = np.random.default_rng(seed)
    made = []
    for at in range(n):
        x = draw.normal(size=6)
        level = 0.5 + 0.1 * draw.normal()
        quality = {
            V: level + noise * draw.normal(),
            H: level + bias + signal * x[0] + noise * draw.normal(),
            P: level - 0.1 + noise * draw.normal(),
        }
        clipped = {s: float(np.clip(q, 0, 1)) for s, q in quality.items()}
        features = {**{f"f{i}": float(v) for i, v in enumerate(x)}, "constant": 1.0}
        made.append(TrainingRow(query_id=f"q{at}", features=features, quality=clipped, latency_ms=MS))
    return made


@pytest.fixture(scope="module")
def model() -> StrategyModel:
    return fit_strategy_model(rows(200, 1, signal=0.25), trained_on=ORIGIN)


def features(x: float, **changes: float) -> dict[str, float]:
    return {**{f"f{i}": 0.0 for i in range(6)}, "f0": x, "constant": 1.0, **changes}


def test_a_signal_is_learned(model):
    assert model.shrinkage is not None
    assert model.advantages(features(2.0))[H] > model.advantages(features(2.0))[V] + 0.2
    assert model.advantages(features(-2.0))[V] > model.advantages(features(-2.0))[H] + 0.2
    assert model.trained_on.rows == 200
    found = cross_validate(rows(200, 1, signal=0.25), heuristic=HeuristicSelector())
    assert found.helps
    assert found.gain_low > 0
    assert found.best_fixed < found.learned <= found.oracle
    assert 0.3 < found.gap_closed <= 1


@pytest.mark.parametrize("seed", range(4))
def test_without_a_signal_the_best_fixed_strategy_is_kept(seed):
    data = rows(100, seed, signal=0.0)
    made = fit_strategy_model(data, trained_on=ORIGIN, seed=seed)
    best = max((V, H, P), key=lambda s: np.mean([row.quality[s] for row in data]))
    if made.shrinkage is None:
        assert made.weights == ((0.0,) * 7,) * 3
        assert {max(made.advantages(r.features), key=made.advantages(r.features).get) for r in data} == {best}
    found = cross_validate(data, seed=seed)
    assert abs(found.gain) < 0.02
    assert not (found.helps and found.gain_high < 0)


def test_the_penalty_ends_at_infinity_where_nothing_can_be_learned():
    ended = [fit_strategy_model(rows(80, seed, signal=0.0), trained_on=ORIGIN).shrinkage for seed in range(10)]
    assert sum(penalty is None for penalty in ended) >= 8


def test_ridge_agrees_with_its_normal_equations():
    from agentic_retriever.routing.training import Table, best_fixed, fit

    table = Table.of(rows(60, 5, signal=0.2))
    z = (table.features - table.features.mean(axis=0)) / np.where(
        table.features.std(axis=0) < 1e-9, 1, table.features.std(axis=0)
    )
    z = np.clip(z, -4, 4)
    centred = z - z.mean(axis=0)
    gains = table.quality - table.quality[:, [best_fixed(table.quality)]]
    wanted = np.linalg.solve(
        centred.T @ centred + 0.3 * len(z) * np.eye(z.shape[1]), centred.T @ (gains - gains.mean(axis=0))
    )
    assert fit(table, (0.3,))[0].weights == pytest.approx(wanted.T, abs=1e-9)


def test_the_same_seed_gives_the_same_model_and_figures():
    data = rows(60, 2, signal=0.2)
    assert fit_strategy_model(data, trained_on=ORIGIN, seed=4) == fit_strategy_model(data, trained_on=ORIGIN, seed=4)
    assert cross_validate(data, seed=4) == cross_validate(data, seed=4)
    json.dumps(cross_validate(data, seed=4, heuristic=HeuristicSelector()).to_dict())


def test_a_model_that_falls_behind_the_heuristic_does_not_help():
    class Oracle:
        mode = "oracle"

        def select(self, query, cards, *, features, allowance=None):
            better = "hybrid" if features["f0"] > 0 else "vector"
            return HeuristicSelector().select(query, [c for c in cards if c.strategy.value == better], features={})

    data = rows(60, 3, signal=0.25, noise=0.3, bias=0.0)
    found = cross_validate(data, heuristic=Oracle())
    assert found.over_heuristic[0] == pytest.approx(found.learned - found.heuristic)
    assert found.over_heuristic[0] < 0
    assert not found.helps


def test_a_faster_strategy_wins_within_the_tolerance():
    data = rows(60, 3, signal=0.0, noise=0.0, bias=0.01)
    cards = [make_card(s) for s in (V, H, P)]
    names = [
        LearnedSelector(fit_strategy_model(data, trained_on=ORIGIN, tolerance=t)).select(
            "x", cards, features=features(0.0)
        )
        for t in (0.0, 0.02)
    ]
    assert [selection.name for selection in names] == ["hybrid", "vector"]
    assert names[1].scores["vector"] == names[1].scores["hybrid"] == names[1].confidence


def test_the_selector_keeps_the_protocol(model):
    selector = LearnedSelector(model)
    assert isinstance(selector, StrategySelector)
    selection = selector.select("x", [make_card(P), make_card(V), make_card(H)], features=features(2.0, other=1.0))
    shares = list(selection.scores.values())
    assert (selection.name, selection.mode, selection.degraded) == ("hybrid", "learned", ())
    assert shares == sorted(shares, reverse=True)
    assert selection.confidence == shares[0]
    assert math.isclose(sum(shares), 1.0)
    assert "trained on 200 questions" in selection.reason
    assert selector.select("x", [make_card(V)], features=features(2.0)).mode == "only"
    with pytest.raises(NoEligibleStrategyError):
        selector.select("x", [], features=features(0.0))


@pytest.mark.parametrize(
    ("cards", "changes", "named"),
    [
        ([V, H, Strategy.SUMMARY], {}, "summary"),
        ([V, H], {"f3": math.nan}, "f3"),
        ([V, H], None, "f0"),
    ],
)
def test_what_does_not_fit_goes_to_the_other_selector(model, cards, changes, named):
    seen = {} if changes is None else features(2.0, **changes)
    selection = LearnedSelector(model).select("x", [make_card(s) for s in cards], features=seen)
    assert selection.mode == "heuristic"
    assert [lost.step for lost in selection.degraded] == ["stage_two.learned"]
    assert named in selection.degraded[0].reason
    assert selection.degraded[0].fallback == "heuristic"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=6, max_size=6))
def test_any_finite_features_give_probabilities(model, values):
    found = {**{f"f{i}": v for i, v in enumerate(values)}, "constant": 2.0}
    selection = LearnedSelector(model).select("x", [make_card(s) for s in (V, H, P)], features=found)
    assert math.isclose(sum(selection.scores.values()), 1.0, abs_tol=1e-9)
    assert selection.mode == "learned"


def test_a_model_comes_back_from_its_file(model, tmp_path):
    assert StrategyModel.load(tmp_path / "none.json") is None
    model.save(tmp_path / "m.json")
    assert StrategyModel.load(tmp_path / "m.json") == model
    assert StrategyModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model


def damage(table: dict, path: tuple, value: object) -> dict:
    place = table
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return table


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("format",), 2, "format"),
        (("means",), ..., "means"),
        (("extra",), 1, "extra"),
        (("strategies", 0), "magic", "magic"),
        (("strategies",), [], "strategies|weights"),
        (("features", 0), "f1", "features"),
        (("features", 0), 7, "features"),
        (("means", 1), "1", r"means\[1\]"),
        (("means", 1), True, r"means\[1\]"),
        (("means",), [0.0], "means"),
        (("scales", 0), 0.0, "scales"),
        (("intercepts", 2), float("nan"), r"intercepts\[2\]"),
        (("weights", "hybrid"), [1.0], "weights.hybrid"),
        (("weights", "hybrid", 3), None, r"weights.hybrid\[3\]"),
        (("weights", "hybrid"), {}, "weights.hybrid"),
        (("temperature",), 0.0, "temperature"),
        (("tolerance",), -1, "tolerance"),
        (("latency_ms", "vector"), -1.0, "latency_ms.vector"),
        (("shrinkage",), "no", "shrinkage"),
        (("trained_on", "rows"), -1, "trained_on.rows"),
        (("trained_on", "index"), None, "trained_on.index"),
        (("trained_on",), [], "trained_on"),
    ],
)
def test_a_damaged_file_is_named_with_its_key(model, tmp_path, path, value, named):
    file = tmp_path / "m.json"
    file.write_text(json.dumps(damage(json.loads(json.dumps(model.to_dict())), path, value)))
    with pytest.raises(StoreDamagedError, match=named) as caught:
        StrategyModel.load(file)
    assert "m.json" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\x80\x04K\x01.", b"\xff", b"[" * 100_000])
def test_what_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "m.json").write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"m\.json"):
        StrategyModel.load(tmp_path / "m.json")


def test_rows_that_cannot_be_trained_on_are_named():
    good = rows(30, 0, signal=0.1)

    def changed(**parts) -> list[TrainingRow]:
        first = good[4]
        kept = {"features": first.features, "quality": first.quality, "latency_ms": first.latency_ms}
        return [*good[:4], TrainingRow(query_id="odd", **{**kept, **parts}), *good[5:]]

    for data, named in [
        (good[:19], "19 judged"),
        ([*good, good[0]], "same query_id"),
        (changed(features={"f0": 1.0}), "odd"),
        (changed(features={**good[0].features, "f0": math.inf}), "finite"),
        (changed(quality={V: 0.5}), "hybrid"),
        (changed(quality={V: 1.5, H: 0.0, P: 0.0}), "1.5"),
        (changed(latency_ms={}), "latency"),
    ]:
        with pytest.raises(EvaluationError, match=named):
            fit_strategy_model(data, trained_on=ORIGIN)
    with pytest.raises(EvaluationError, match="folds"):
        cross_validate(good, folds=7)
    with pytest.raises(EvaluationError, match="folds"):
        cross_validate(good, folds=1)
