"""Running a benchmark, and its JSON against docs/benchmarks.md."""

import json
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from evaluation_material import BOAT_QUERIES, BOATS, DIMENSION, bench, without_times, write_beir, write_lines
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import ConfigError, EvaluationError, UnknownIndexError
from agentic_retriever.evaluation import BenchOptions, benchmark, measures, results
from agentic_retriever.evaluation.harness import take_turns
from agentic_retriever.evaluation.measures import MEASURES, Row, measure_rankings
from agentic_retriever.evaluation.peers import Journal
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Strategy
from agentic_retriever.testing import FakeEmbedding, FakeLLM

SEVEN = [strategy.value for strategy in Strategy]
QUERIES = {**BOAT_QUERIES, "q3": ("who keeps the mooring list", "b5"), "q4": ("wind and a sail", "b2")}
PEERS = ["llamaindex_vector", "llamaindex_bm25", "llamaindex_fusion_rrf", "llamaindex_fusion_relative_score",
         "llamaindex_router"]  # fmt: skip


@pytest.fixture
def harbour(tmp_path):
    return write_beir(tmp_path / "harbour", BOATS, QUERIES, description="the harbour")


def test_all_rows_and_keys(tmp_path, harbour):
    pytest.importorskip("llama_index.retrievers.bm25")
    told = json.loads(bench(tmp_path, harbour, peers=True).to_json(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == told
    keys = "format seed options machine versions settings datasets means choice stage_one intents gate"
    assert set(told) == set(keys.split())
    found = told["datasets"]["harbour"]
    # Peers take no part in it, however well they do.
    assert told["choice"].items() <= found["routing"].items()
    assert list(found["strategies"]) == [*SEVEN, "auto", "oracle", *PEERS]
    for name, row in found["strategies"].items():
        assert {*MEASURES, "p50_ms", "p95_ms", "failed", "cold_ms", "intervals"} <= set(row), name
        assert set(row["intervals"]) == set(MEASURES)
        assert row["failed"] == 0, row["failures"]
        for measure in MEASURES:
            low, high = row["intervals"][measure]
            assert 0 <= low <= row[measure] <= high <= 1
        assert (set(row["per_query"]), row["peer"]) == (set(QUERIES), name in PEERS)
    assert found["strategies"]["vector"]["cold_ms"] > 0
    assert {"routing", "retrieval", "total"} <= set(found["strategies"]["hybrid"]["stages_ms"])
    assert found["against"]["baseline"] == "vector"
    assert set(found["against"]["rows"]) == {*SEVEN, "auto", *PEERS} - {"vector"}
    assert found["strategies"]["llamaindex_vector"]["nDCG@10"] == found["strategies"]["vector"]["nDCG@10"]
    routing = found["routing"]
    assert routing["oracle_mean"] == pytest.approx(found["strategies"]["oracle"]["nDCG@10"])
    assert routing["oracle_mean"] >= max(found["strategies"][name]["nDCG@10"] for name in SEVEN) - 1e-12
    assert sum(routing["picked"].values()) == len(QUERIES)


def test_the_same_seed_gives_the_same_figures(tmp_path, harbour):
    first, second = (bench(tmp_path / name, harbour, seed=3, limit=3).to_dict() for name in ("one", "two"))
    assert without_times(first) == without_times(second)
    assert bench(tmp_path / "three", harbour, seed=4, limit=2).to_dict()["datasets"]["harbour"]["queries"] == 2


def test_an_interrupted_run_goes_on(tmp_path, harbour, monkeypatch):
    asked: list[tuple[str, str]] = []
    original = AgenticRouter.retrieve

    def retrieve(most):
        def asking(self, query, *, strategy, **more):
            if len(asked) == most:
                raise KeyboardInterrupt
            asked.append((strategy, query))
            return original(self, query, strategy=strategy, **more)

        return asking

    monkeypatch.setattr(AgenticRouter, "retrieve", retrieve(6))
    wanted = {"strategies": ["vector", "hybrid"], "folder": tmp_path / "keep"}
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path, harbour, **wanted)
    [log] = (tmp_path / "keep" / "runs").iterdir()
    assert len(log.read_text(encoding="utf-8").splitlines()) == 1 + 6  # its head, one cold start, four and one question
    with log.open("ab") as file:
        file.write(b'{"kind": "warm", "row": "hyb')  # killed while writing
    done = set(asked[1:5])
    asked.clear()
    monkeypatch.setattr(AgenticRouter, "retrieve", retrieve(-1))
    result = bench(tmp_path, harbour, **wanted)
    assert not done & set(asked)
    assert {name for name, _ in asked} == {"hybrid"}
    assert len(result.results["harbour"].rows["hybrid"].quality) == len(QUERIES)
    assert not list((tmp_path / "keep" / "runs").iterdir())
    fresh = bench(tmp_path / "fresh", harbour, strategies=["vector", "hybrid"])
    assert without_times(result.to_dict()["datasets"]) == without_times(fresh.to_dict()["datasets"])


def test_by_intent_auto_is_told_beside_another_strategy_only():
    rows = [Mock(peer=False, quality={"q": dict.fromkeys(MEASURES, 0.5)}) for _ in ("auto", "vector")]
    rows[0].name, rows[1].name = "auto", "vector"
    alone, both = (results.IntentQuality.of(few, [Mock(intent="value", query_id="q")]) for few in (rows[:1], rows))
    assert (alone, results.IntentQuality.merged([]), results.IntentQuality.merged([both])) == (None, None, both)


def test_a_failing_question_is_counted_and_tried_again(tmp_path, harbour, monkeypatch):
    from agentic_retriever.retrievers import VectorRetriever

    original = VectorRetriever._search

    def fail(self, request, deadline):
        if "anchor" in request.query:
            raise RuntimeError("no such secret")
        return original(self, request, deadline)

    monkeypatch.setattr(VectorRetriever, "_search", fail)
    result = bench(tmp_path, harbour, strategies=["vector"])
    row = result.results["harbour"].rows["vector"]
    assert [failure.query_id for failure in row.failures] == ["q2"]
    assert "no such secret" not in row.failures[0].error
    assert (row.quality["q2"], row.mean()) == (dict.fromkeys(MEASURES, 0.0), pytest.approx(0.75))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pandas"):
        result.to_frame()


def test_round_robin_asks_every_question_once(tmp_path, harbour):
    found = bench(tmp_path, harbour, mode="round_robin", strategies=["vector", "hybrid", "planner"]).results["harbour"]
    assert {name: list(row.quality) for name, row in found.rows.items()} == {
        "vector": ["q1", "q4"], "hybrid": ["q2"], "planner": ["q3"],
    }  # fmt: skip
    assert found.routing is None
    assert found.against is None


@given(st.lists(st.integers(), max_size=20, unique=True), st.integers(1, 7))
def test_turns_share_out_everything(questions, strategies):
    shares = take_turns([str(at) for at in range(strategies)], questions)
    assert sorted(one for share in shares.values() for one in share) == sorted(questions)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1


def test_without_views_what_needs_them_is_listed(tmp_path, harbour):
    found = bench(tmp_path, harbour, views=False).results["harbour"]
    assert set(found.not_served) == {"recursive", "chunk_decoupling", "summary"}
    assert set(found.rows) == {"vector", "hybrid", "planner", "metadata", "auto", "oracle"}


def test_questions_are_asked_of_existing_indexes(tmp_path, harbour, router):
    router.add_index("mine", harbour / "corpus.jsonl")
    records = [
        {"id": "a", "query": "when does the ferry leave", "index": "mine", "doc_ids": ["b1"], "answer": "at nine"},
        {"id": "b", "query": "what is lost", "index": "mine", "doc_ids": ["b99"]},
        {"id": "c", "query": "colour of the moon", "answerable": False},
    ]
    path = write_lines(tmp_path / "asked.jsonl", records)
    found = benchmark(router, path, answers=True, strategies=["vector", "auto"]).results["asked"]
    assert found.problems.counts == {"unjudged_query": 1, "unknown_document": 1}
    assert list(found.rows) == ["vector", "auto"]
    told = found.answers.to_dict()
    assert told["asked"] == 2
    assert told["counts"]["citation_recall"] == told["counts"]["answer_f1"] == 1
    assert told["judged_by"]["citation_recall"] == "gold documents"
    assert "faithfulness" not in told
    assert "no language model" in told["notes"][0]
    assert told["abstention"]["out_of_scope"] == 1
    assert "mine" in router.index_names()


def test_a_model_judges_when_there_is_one(tmp_path, harbour):
    model = FakeLLM(lambda prompt: "YES" if "YES" in prompt else "The ferry leaves the harbour at nine. [1]")
    found = bench(tmp_path, harbour, answers=True, strategies=["vector"], limit=2, llm=model).results["harbour"].answers
    assert (found.means["faithfulness"], found.means["context_precision"]) == (1.0, 1.0)
    assert found.judged_by["faithfulness"].startswith("model ")
    assert found.notes == ()


def test_unknown_index_and_wrong_options(tmp_path, harbour):
    path = write_lines(tmp_path / "asked.jsonl", [{"query": "x", "index": "nowhere", "doc_ids": ["a"]}])
    with pytest.raises(UnknownIndexError, match="nowhere"):
        bench(tmp_path, path)
    with pytest.raises(EvaluationError, match="name a data set"):
        bench(tmp_path)
    for wrong, told in (
        ({"mode": "some"}, "mode must be"),
        ({"strategies": ["vectro"]}, "did you mean 'vector'"),
        ({"strategies": []}, "names none"),
        ({"depth": 0}, "from 1"),
        ({"mode": "round_robin", "peers": True}, "mode all"),
        ({"modes": 1}, "modes"),
        ({"strategies": ["vector", "hybrid"], "baseline": "summary"}, "baseline"),
        ({"options": BenchOptions(), "seed": 1}, "not both"),
    ):
        with pytest.raises(EvaluationError, match=told):
            bench(tmp_path, harbour, **wrong)  # fmt: skip


def test_the_page_holds_everything_and_runs_nothing(tmp_path, harbour):
    pytest.importorskip("matplotlib")
    evil = "<script>alert('x')</script> & when does the ferry leave"
    folder = write_beir(tmp_path / "a<b>", BOATS, {"q<1>": (evil, "b1"), "q2": QUERIES["q2"]})
    result = bench(tmp_path, folder, answers=True)
    page = result.to_html(tmp_path / "out.html")
    assert (tmp_path / "out.html").read_text(encoding="utf-8") == page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "q&lt;1&gt;" in page
    assert "a<b>" not in page + result._repr_html_()
    for address in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert address.startswith("#"), address
    for address in re.findall(r"https?://[^\s\"'<)]+", page):
        assert address.startswith("http://www.w3.org/"), address
    assert "default-src 'none'" in page
    assert page.count("<svg") >= 4
    assert "color-scheme: light dark" in page
    for title in ("Quality against latency", "Distribution over the questions", "Regret by question",
                  "Confidence in the chosen strategy", "worst questions of auto"):  # fmt: skip
        assert title in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert result.plot() is not None


def row(name, values):
    quality = {str(at): dict.fromkeys(MEASURES, value) for at, value in enumerate(values)}
    records = {query: {"ms": 1.0, "docs": ["d"], "strategy": "vector", "confidence": 0.5} for query in quality}
    return Row(name=name, quality=quality, records=records)


grades = st.floats(0, 1, width=16)


@given(st.lists(st.tuples(grades, grades, grades), min_size=1, max_size=12))
def test_oracle_and_regret_are_what_they_say(table):
    rows = [row(name, [one[at] for one in table]) for at, name in enumerate(("vector", "hybrid", "summary"))]
    oracle = results.oracle_row(rows, seed=0)
    assert oracle.values("nDCG@10") == [max(one) for one in table]
    found = results.routing_quality(rows, rows[0], seed=0)
    assert found.accuracy == pytest.approx(np.mean([one[0] == max(one) for one in table]))
    assert found.mean_regret == pytest.approx(np.mean([max(one) - one[0] for one in table]))
    means = {one.name: one.mean() for one in rows}
    assert found.choice.best_fixed_mean == max(means.values())
    assert found.to_dict()["oracle_gap"] == pytest.approx(oracle.mean() - max(means.values()))
    assert means[found.cheapest_good] >= max(means.values()) - 0.02 - 1e-9


def test_the_choice_over_several_data_sets_is_held_against_one_strategy_for_all():
    means = {"vector": 0.4, "hybrid": 0.5, "auto": 0.53, "oracle": 0.6}
    found = results.mean_choice(means)
    assert (found.best_fixed, found.best_fixed_mean) == ("hybrid", 0.5)
    assert found.gap_closed == pytest.approx(0.3)
    assert found.to_dict()["gap_closed"] == found.gap_closed
    assert results.mean_choice({**means, "auto": 0.45}).gap_closed == pytest.approx(-0.5)
    assert results.mean_choice({**means, "oracle": 0.5}).gap_closed is None
    for missing in ("auto", "oracle"):
        assert results.mean_choice({name: mean for name, mean in means.items() if name != missing}) is None
    assert results.mean_choice({"auto": 0.5, "oracle": 0.5}) is None


def test_cheapest_within_takes_the_cheap_one_only_if_it_is_good_and_against_leaves_the_oracle_out():
    assert results.cheapest_within({"vector": 0.39, "planner": 0.40}) == "vector"
    assert results.cheapest_within({"vector": 0.37, "planner": 0.40}) == "planner"
    rows = {name: row(name, [0.1, 0.2]) for name in ("hybrid", "oracle", "planner")}
    found = results.against_baseline(rows, None, seed=0)
    assert (found.baseline, set(found.rows)) == ("hybrid", {"planner"})


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.tuples(st.floats(1, 9), st.floats(0, 1)), min_size=1))
def test_pareto_front_is_what_nothing_beats(points):
    front = results.pareto_front(points)
    for name, (ms, quality) in points.items():
        beaten = any((m <= ms and q > quality) or (m < ms and q >= quality) for m, q in points.values())
        assert not (name in front and beaten)
        assert beaten or name in front or any(points[one] == points[name] for one in front)


def test_a_journal_of_another_measurement_or_damaged_counts_as_none(tmp_path):
    for key, before in (("one", []), ("one", [{"a": 1}]), ("two", [])):
        with Journal(tmp_path / "x.jsonl", key) as journal:
            assert journal.records == before
            journal.append({"a": 1})
    for content in (b"", b"[]", b"{", b'{"format": 1, "key": "k", "parts": 3}\n', b"\xff\xfe\n"):
        (tmp_path / "j").write_bytes(content)
        with Journal(tmp_path / "j", "k") as journal:
            assert journal.records == []


PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def json_section():
    return PAGE.read_text(encoding="utf-8").partition("## The JSON")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A benchmark of two indexes with everything that can be measured without a model."""
    folder = tmp_path_factory.mktemp("schema")
    records = [{"id": i, "query": text, "index": "boats", "doc_ids": [doc_id], "answer": BOATS[doc_id]}
               for i, (text, doc_id) in BOAT_QUERIES.items()]  # fmt: skip
    records += [{"id": "b1", "query": "rye flour and water", "index": "bread", "doc_ids": ["r4"], "answer": "water"},
                {"id": "out", "query": "who painted the ceiling", "answerable": False}]  # fmt: skip
    asked = write_lines(folder / "asked.jsonl", records)
    bread = {"r4": "Rye flour needs more water.", "r3": "Bake the loaf in a hot oven."}
    embedding = FakeEmbedding(dimension=DIMENSION)
    with AgenticRouter(RouterConfig(data_dir=folder / "data"), embedding=embedding) as router:
        for name, documents in (("boats", BOATS), ("bread", bread)):
            path = write_lines(folder / f"{name}.jsonl", [{"_id": i, "text": t} for i, t in documents.items()])
            router.add_index(name, path, description=f"about {name}")
        result = benchmark(router, asked, strategies=["vector", "hybrid", "auto"], answers=True, folder=folder / "keep")
        return json.loads(result.to_json()), result.to_html()


def test_every_key_is_documented(told):
    data, _ = told
    # Every word in code style in the table of the JSON.
    known = set(re.findall(r"[\w@]+", " ".join(re.findall(r"`([^`]+)`", json_section()))))
    assert set(data) <= known
    for one in data["datasets"].values():
        assert set(one) <= known
        for row in one["strategies"].values():
            assert set(row) - set(MEASURES) <= known
        for part in ("against", "routing"):
            assert set(one[part]) - {"rows"} <= known, part
        parts = {"counts", "intervals", "judged_by", "abstention", "reliability", "tiers", "per_query"}
        assert parts <= set(one["answers"])
    of_ways = {"accuracy", "macro_accuracy", "macro_f1", "reached", "ece", "by_index", "confusion", "latency_ms"}
    assert of_ways <= known
    assert all(of_ways <= set(way) for way in data["stage_one"]["stage_one"].values())


def test_what_is_documented_is_there(told):
    data, _ = told
    one = data["datasets"]["asked/boats"]
    rows = dict(re.findall(r"^\| `….(\w+)(?:\.ROW)?`[^|]*\| (.*) \|$", json_section(), re.MULTILINE))
    for part in ("against", "routing"):
        named = set(re.findall(r"`(\w+)`", rows[part])) - {"difference", "interval", "p", "p_holm"}
        assert named
        assert named <= set(one[part]), part
    assert {"difference", "interval", "p", "p_holm"} == set(next(iter(one["against"]["rows"].values())))
    named = set(re.findall(r"`(\w+)`", rows["answers"]))
    assert named <= set(one["answers"])


def test_several_indexes_bring_the_choice_of_the_index(told):
    data, page = told
    found = data["stage_one"]
    assert set(found["indexes"]) == {"boats", "bread"}
    assert {"profile", "embedding"} <= set(found["stage_one"])
    for way in found["stage_one"].values():
        assert way["queries"] == 3
        assert 0 <= way["accuracy"] <= 1
    assert found["stage_one"]["profile"]["accuracy"] == 1.0
    assert "bench-routing" in found["left_out"]["llm"]
    assert "stage one: 3 questions" in page
    assert "accuracy by index" in page


def test_a_measure_without_a_number_counts_as_nothing_found(monkeypatch):
    real = pytest.importorskip("ir_measures")

    class Odd:
        def __getattr__(self, name):
            return getattr(real, name)

        def iter_calc(self, wanted, qrels, run):
            for metric in real.iter_calc(wanted, qrels, run):
                odd = metric.query_id == "q1" and str(metric.measure) == MEASURES[0]
                yield real.Metric(metric.query_id, metric.measure, float("nan")) if odd else metric

    monkeypatch.setattr(measures, "optional", lambda *_: Odd())
    found = measure_rankings({"q1": {"d": 1}, "q2": {"d": 1}}, {"q1": ["d"], "q2": ["d"]})
    assert found["q1"][MEASURES[0]] == 0.0
    assert found["q1"]["RR"] == found["q2"][MEASURES[0]] == 1.0
