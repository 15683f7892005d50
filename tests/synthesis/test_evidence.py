import json
import math
import random
from dataclasses import replace

import fit_confidence as script
import numpy as np
import pytest
from answer_nodes import extract, make_node
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.indices.profile import ProfiledNode, collect_identifiers
from agentic_retriever.synthesis import ConfidenceModel, ConfidenceModels, Evidence, assemble
from agentic_retriever.synthesis.evidence import default_models, figures_of, supported_share
from agentic_retriever.synthesis.questions import lacks_measure

SIGNS = script.SIGNS
GOOD = {name: 1.0 if sign > 0 else 0.0 for name, sign in SIGNS.items()} | {"beyond": 4.0}
BAD = {name: 0.0 if sign > 0 else 1.0 for name, sign in SIGNS.items()} | {"beyond": -1.0}
FIGURES = st.fixed_dictionaries({}, optional=dict.fromkeys(SIGNS, st.none() | st.floats()))


def figures(query, nodes, known=None):
    passages = assemble(nodes, max_chars=10_000)
    return figures_of(query, passages, extract(query, nodes).citations, known or Evidence())


def test_figures_of_an_answer_that_is_there_and_of_one_that_is_not(handbook):
    there = figures("How much is the daily allowance for meals in Germany?", handbook)
    assert (there["reachable"], there["absent"], there["absent_names"]) == (1.0, 0.0, 0.0)
    other = figures("How much is the daily allowance for meals in Gdansk?", handbook)
    assert other["absent_names"] > 0 < other["absent"]
    assert other["reachable"] < 1.0
    assert figures("What does form Q-77 cost in Bolivia?", handbook)["absent"] > 0.5
    table = [make_node("| day | wind |\n| --- | --- |\n| 2012-01-04 | 4.7 |", start=0)]
    named = [figures(f"Was there wind on 4 {month}?", table)["absent_names"] for month in ("January", "June")]
    assert named == [0.0, math.log(2)]
    models = default_models()
    assert models.right.probability(other) < models.right.probability(there)
    assert models.answered.probability(other) < models.answered.probability(there)
    assert figures("", [])["unseen"] == 1.0


def test_the_script_that_fits_notes_what_an_answer_is_judged_by(handbook):
    writer = script.NotingSynthesizer(lambda texts, **_limits: np.ones((len(texts), 2)))
    for query, share in (("How much is the daily allowance for meals in Germany?", 1.0), ("Boil an egg in Lima?", 0.0)):
        writer.synthesize(query, handbook)
        assert writer.noted[0]["reachable"] == share
    assert writer.noted[1]


@pytest.mark.parametrize(
    ("query", "least"),
    [
        ("What is the meal allowance in Gdansk?", 1), ("What is the allowance of form NS-9?", 2),
        ("What is the allowance of E-9?", 1), ("What does a meal cost?", 2), ("How much do we pay for form NS-1?", 2),
        ("What is the meal allowance of version 4.7?", 1), ("What is the meal allowance with --board?", 1),
        ("What is the meal allowance in meal_plan?", 1), ("What is the meal allowance?", 0),
        ("What is the meal allowance--daily, version 1.5.2024?", 0),
        ("Was ist die Allowance für Gdansk?", 0),
    ],
)  # fmt: skip
def test_names_prices_and_numbers_of_a_series_that_are_nowhere_speak_against_an_answer(nearness, query, least):
    known, forms = nearness(3.0), [ProfiledNode(f"n{n}", f"NS-{n}", {}) for n in (1, 2, 3)]
    known = replace(known, profile=replace(known.profile, identifiers=collect_identifiers(forms)))
    for text, found in (
        ("is set by the board", least),
        ("is 9 dollars", 0 if lacks_measure(query, [], foreign=False) else least),
    ):
        nodes = [make_node(f"The daily meal allowance {text}.", start=0)]
        assert figures(query, nodes, known)["absent_codes"] == found
    spelt_out = replace(known, expanded=("City of Gdansk",))
    assert "Gdansk" not in query or figures(query, nodes, spelt_out)["absent_codes"] == 0


@pytest.mark.parametrize(("query", "text", "found"), [
    ("How many hours does the lamp of a bicycle shine?", "The lamp of a bicycle shines long.", 2),
    ("How many hours does the lamp of a bicycle shine?", "The lamp of a bicycle shines for 3 h.", 0),
    ("How many hours does the lamp of a bicycle shine?", "| Lamp of a bicycle | hours |\n|---|---|\n| A | 3 |", 0),
    ("How many hours does the lamp of a bicycle shine?", "Die Lampe eines Fahrrads leuchtet und ist nicht schwer.", 0),
    ("How many lamps does a bicycle have?", "The lamp of a bicycle shines long.", 0),
    ("Wie viel Euro kostet die Lampe?", "Die Lampe eines Fahrrads kostet nicht viel Geld.", 2),
])  # fmt: skip
def test_a_unit_that_is_asked_for_and_that_no_passage_has_speaks_against_an_answer(query, text, found):
    assert figures(query, [make_node(text, start=0)])["absent_codes"] == found


def test_words_of_another_language_count_only_where_no_vector_tells_more(handbook, nearness):
    query = "¿Cuánto es la dieta diaria para las comidas del viaje?"
    assert figures(query, handbook)["reachable"] is not None
    seen = figures(query, handbook, nearness(3.0))
    assert seen["reachable"] is None
    assert seen["beyond"] == pytest.approx(3.0, abs=0.01)
    spanish = [make_node("La dieta diaria para las comidas es de 48 euros.", start=0, node_id="t1")]
    assert figures(query, spanish, nearness(3.0))["reachable"] is None  # words are cut as English ones


@pytest.mark.parametrize(
    ("query", "near", "known"),
    [
        ("What wind was there in 1945?", 0.5, False), ("What wind was there in 45?", 0.5, True),
        ("What did Ada Byron write?", 0.5, False), ("What did Byron write?", 0.5, True),
        ("What wind was there in 1945?", 4.0, True), ("What wind does Fastnet have?", 0.5, False),
    ],
)  # fmt: skip
def test_low_cosines_say_nothing_of_a_row_that_is_asked_for_by_its_number_or_name(nearness, query, near, known):
    table = "| Year | Wind |\n| --- | --- |\n| 1945 | 4.7 |\n| Ada Byron | notes |\n| Fastnet | 9 |"
    beyond = figures(query, [make_node(table, node_id="t1")], nearness(near))["beyond"]
    assert beyond == (pytest.approx(near, abs=0.01) if known else None)


def test_a_node_that_is_near_to_all_questions_says_less_of_one(handbook, nearness):
    known = nearness(3.0)
    hub = known.unrelated.mean(axis=0) / np.linalg.norm(known.unrelated.mean(axis=0))
    profile = replace(known.profile, sample=np.vstack([hub, known.profile.sample[1:]]))
    to_hub, to_another, to_part = (
        figures("meals", handbook, replace(known, profile=of, query_vector=vector))["tailored"]
        for of, vector in ((profile, hub), (profile, profile.sample[5]), (replace(profile, nodes=99), hub))
    )
    assert 0 < to_hub < to_another - 0.5
    assert to_part is None


def test_what_conditions_said_counts_as_found():
    passages = assemble([make_node("Deed 10 of Somchai, 4 rai.")], max_chars=9_999)
    plain, settled = (
        figures_of("deeds in Phuket issued after 1990", passages, (), Evidence(settled=words))
        for words in ((), ("Phuket", "issued after 1990"))
    )
    assert plain["reachable"] < 0.5 < settled["reachable"] == 1
    nothing_else = figures_of("in Phuket", passages, (), Evidence(settled=("in Phuket",)))
    assert nothing_else["reachable"] == 1
    other = figures_of("deeds in Krabi after 1990", passages, (), Evidence(settled=("after 1990",)))
    assert other["reachable"] < 0.6  # for no deed is in Krabi


def test_a_passage_that_words_find_far_before_others_is_ahead():
    passages = assemble([make_node("one", node_id="a"), make_node("two", doc_id="b", node_id="b")], max_chars=9_999)
    cited, words = [passages[0].cite(0, 3, 1.0)], ({"a": mine, "b": 4.0} for mine in (8.0, 1.0))
    ahead, behind = (figures_of("one thing", passages, cited, Evidence(by_words=found)) for found in words)
    found = ahead["ahead"], behind["ahead"], ahead["heard"] - behind["heard"]
    assert found == pytest.approx((0.5, -0.75, math.log(2)))


def test_good_evidence_is_answered_bad_is_declined_and_support_scales_the_score():
    models = default_models()
    assert models.answered.probability(GOOD) > 0.9 > models.answered_from > models.answered.probability(BAD)
    assert models.right.probability(GOOD) > models.right.probability(BAD)
    assert models.high_from >= 0.75
    assert supported_share(0.9, 1.0) == pytest.approx(0.9)
    assert supported_share(0.9, 0.0) == pytest.approx(0.4 * 0.9)
    assert supported_share(0.9, math.nan) == supported_share(0.9, 0.0)


@given(FIGURES, st.floats())
def test_any_numbers_give_a_score_in_range(figures, support):
    for model in (default_models().answered, default_models().right):
        assert 0.0 <= supported_share(model.probability(figures), support) <= 1.0


@given(st.fixed_dictionaries(dict.fromkeys(SIGNS, st.floats(-9, 9))), st.sampled_from(sorted(SIGNS)), st.floats(0, 9))
def test_better_evidence_never_lowers_it(figures, name, more):
    better = {**figures, name: figures[name] + SIGNS[name] * more}
    for model in (default_models().answered, default_models().right):
        assert model.probability(better) >= model.probability(figures) - 1e-9


def _rows(count=400):
    """Answers that are right with a probability that the best passage and nearness decide."""
    rng = random.Random(5)
    rows = []
    for _ in range(count):
        reachable, beyond = rng.random(), rng.random()
        right = rng.random() < 1 / (1 + 2.718 ** -(5 * reachable + 3 * beyond - 4))
        noise = {"unknown": rng.random(), "absent": rng.choice([1.0 - reachable, 0.0, 1.0])}
        figures = {"reachable": reachable, "beyond": beyond, **noise}
        rows.append(script.JudgedAnswer(figures=figures, right=right))
    return rows


def test_a_fit_is_calibrated_and_finds_what_matters():
    rows = _rows()
    model = script.fit_confidence(rows)
    given = [model.probability(row.figures) for row in rows]
    assert sum(given) / len(given) == pytest.approx(sum(row.right for row in rows) / len(rows), abs=0.02)
    assert model.weights["reachable"] > 1.5
    assert model.weights["reachable"] > abs(model.weights["unknown"])
    assert all(weight * SIGNS[name] >= 0 for name, weight in model.weights.items())


def test_a_fit_is_the_same_every_time_and_needs_both_kinds():
    rows = _rows(60)
    assert script.fit_confidence(rows) == script.fit_confidence(rows)
    with pytest.raises(ValueError, match="right and wrong"):
        script.fit_confidence([row for row in rows if row.right])
    with pytest.raises(ValueError, match="got 0"):
        script.fit_confidence([])


def test_wrong_evidence_gets_no_weight_rather_than_a_wrong_sign():
    turned = [(row, {"reachable": 1 - row.figures["reachable"], "absent": 0.0}) for row in _rows()]
    rows = [replace(row, figures={**row.figures, **wrong}) for row, wrong in turned]
    assert script.fit_confidence(rows).weights["reachable"] == 0.0


def test_what_is_not_known_counts_as_in_right_answers_where_that_is_asked_for():
    rows = _rows()
    means = script.fit_confidence(rows).neutral, script.fit_confidence(rows, generous=True).neutral
    assert means[0]["reachable"] < means[1]["reachable"]


def test_thresholds_keep_to_what_may_be_declined_and_what_is_called_high():
    rng, rows = random.Random(4), []
    for at in range(400):
        answerable = at % 2 == 0
        figures = {"beyond": rng.gauss(3.0 if answerable else 0.0, 1.0), "margin": rng.random()}
        right = answerable and figures["margin"] + rng.gauss(0.0, 0.1) > 0.5
        family, common = f"f{at % 3}", {"corpus": "c", "kind": "long", "answerable": answerable, "right": right}
        rows.append(script.Row(family=family, figures=figures, **common))
    models, declined, high = script.judged(rows)
    answerable = [at for at, row in enumerate(rows) if row.answerable]
    assert sum(declined[at] for at in answerable) / len(answerable) < 0.1
    assert sum(declined) - sum(declined[at] for at in answerable) > 100
    assert sum(rows[at].right for at in range(400) if high[at]) / sum(high) > 0.8
    assert 0 < models.answered_from < 1
    assert models.right.weights["beyond"] == 0  # of the topic, not of the place


@pytest.mark.parametrize(
    "given",
    [{}, *({"intercept": 0, "weights": {}, "neutral": {}} | bad for bad in ({"intercept": "x"}, {"weights": [1]}))],
)
def test_a_model_that_cannot_be_read_is_refused(given):
    with pytest.raises(ValueError, match="ConfidenceModel"):
        ConfidenceModel.from_dict(given)


def test_the_shipped_weights_have_the_signs_that_are_fixed_and_turn_into_json_and_back():
    models = default_models()
    assert ConfidenceModels.from_dict(json.loads(json.dumps(models.to_dict()))) == models
    for model in (models.answered, models.right):
        assert model.weights.keys() == SIGNS.keys()
        assert all(weight * SIGNS[name] >= 0 for name, weight in model.weights.items() if SIGNS[name])
