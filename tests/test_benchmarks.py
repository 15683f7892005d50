import gc
import io
import json
from collections import Counter
from unittest.mock import Mock

import numpy as np
import pytest
from rich.console import Console

from agentic_retriever.errors import StoreError
from benchmarks import data, harness, machine, server, server_faults, trial
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.harness import BenchmarkSkippedError, Options, Row, Timing, Unit


def ticking(*steps_s):
    """A timer that moves on by one step between the start and the end of each timed call."""
    times = iter([t for i, step in enumerate(steps_s) for t in (100.0 * i, 100.0 * i + step)])
    return lambda: next(times)


def drawn(rows):
    console = Console(file=io.StringIO(), width=200)
    console.print(harness.table(rows))
    return console.file.getvalue()


class TestMeasure:
    def test_gives_median_and_95th_percentile_of_calls_in_milliseconds_and_seconds_of_one(self):
        timing = harness.measure(lambda _: None, range(5), timer=ticking(0.001, 0.002, 0.003, 0.004, 0.010))
        assert timing == Timing(p50_ms=pytest.approx(3.0), p95_ms=pytest.approx(8.8), runs=5)
        assert Timing.of([7.0]) == Timing(7.0, 7.0, 1)
        assert harness.seconds(lambda: None, timer=ticking(2.5)) == 2.5

    def test_warms_up_without_timing_it_beyond_or_without_inputs(self):
        seen = []
        timing = harness.measure(seen.append, ["a", "b", "c"], warm_up=2, timer=ticking(1, 1, 1))
        assert (seen, timing.runs) == (["b", "c", "a", "b", "c"], 3)
        for warm_up, calls in [(0, 2), (50, 4)]:
            seen = []
            harness.measure(seen.append, [1, 2], warm_up=warm_up)
            assert len(seen) == calls

    def test_collection_is_off_during_timed_calls_and_after_them_as_it_was(self):
        states = []
        harness.measure(lambda _: states.append(gc.isenabled()), [1, 2])
        assert states == [False, False]
        assert gc.isenabled()
        with pytest.raises(ZeroDivisionError):
            harness.measure(lambda x: 1 / x, [0])
        assert gc.isenabled()
        gc.disable()
        try:
            harness.measure(lambda _: None, [1])
            assert not gc.isenabled()
        finally:
            gc.enable()


class TestRow:
    def test_has_the_documented_keys(self):
        row = harness.timed_row(
            "a", Timing(2.0, 3.0, 200), peer="other", peer_timing=Timing(50.0, 60.0, 8), target_ms=3.0, note="small"
        )
        assert row.to_dict() == {
            "name": "a", "ours_p50_ms": 2.0, "ours_p95_ms": 3.0, "peer": "other", "peer_p50_ms": 50.0, "ratio": 25.0,
            "target_ms": 3.0, "met": True, "note": "200 runs, peer 8; small",
        }  # fmt: skip
        row = Row(name="a", unit=Unit.NODES_PER_S, ours=4000.0, peer="other", peer_value=200.0, target=5000.0)
        assert row.to_dict() == {
            "name": "a", "ours_nodes_per_s": 4000.0, "peer": "other", "peer_nodes_per_s": 200.0, "ratio": 20.0,
            "target_nodes_per_s": 5000.0, "met": False, "note": "",
        }  # fmt: skip

    def test_a_ratio_is_above_one_when_ours_is_better_and_none_where_there_is_none(self):
        assert Row(name="a", ours=1.0, peer_value=4.0).ratio == 4.0
        assert Row(name="a", ours=4.0, peer_value=1.0).ratio == 0.25
        assert Row(name="a", unit=Unit.NDCG10, ours=0.9, peer_value=0.6).ratio == pytest.approx(1.5)
        for row in [
            Row(name="no peer", ours=1.0),
            Row(name="no time at all", ours=0.0, peer_value=1.0),
            Row(name="peer finds nothing", unit=Unit.NDCG10, ours=0.5, peer_value=0.0),
        ]:
            assert row.ratio is None

    @pytest.mark.parametrize(
        ("row", "met"),
        [
            (Row(name="p95 decides", ours=1.0, ours_p95=2.1, target=2.0), False),
            (Row(name="p95 decides", ours=1.0, ours_p95=2.0, target=2.0), True),
            (Row(name="one value", ours=2.1, target=2.0), False),
            (Row(name="more is better", unit=Unit.NDCG10, ours=0.96, target=0.95), True),
            (Row(name="more is better", unit=Unit.NDCG10, ours=0.94, target=0.95), False),
            (Row(name="no target", ours=1.0), None),
        ],
    )  # fmt: skip
    def test_met(self, row, met):
        assert row.met is met


class TestTable:
    def test_says_what_the_ratio_is_and_shows_figures_and_missed_targets(self):
        text = drawn([Row(name="a", ours=1.0)])
        assert "peer / ours" in text
        assert "times faster" in text
        text = drawn([
            Row(name="quick", ours=0.1234, ours_p95=0.5, peer="slow one", peer_value=1234.5, target=1.0),
            Row(name="late", ours=7.0, ours_p95=9.0, target=1.0),
        ])  # fmt: skip
        quick, late = (next(line for line in text.splitlines() if name in line) for name in ("quick", "late"))
        assert all(shown in quick for shown in ("0.123", "0.500", "slow one", "1,234", "10,004", "yes"))
        assert "NO" in late


class TestResults:
    def test_holds_machine_versions_time_and_rows(self, tmp_path):
        path = tmp_path / "new" / "latest.json"
        rows = [Row(name="a", ours=1.0)]
        harness.write_results(path, rows, skipped={"b": "no data"}, when="2020-01-01T00:00:00", load_before=0.25)
        content = json.loads(path.read_text(encoding="utf-8"))
        assert set(content) == {"machine", "versions", "when", "load_before", "skipped", "results"}
        assert (content["when"], content["load_before"]) == ("2020-01-01T00:00:00", 0.25)
        assert set(content["machine"]) == {"cpu", "cores", "memory_gb", "python", "platform"}
        assert content["machine"]["cores"] >= 1
        assert content["versions"]["numpy"] == np.__version__
        assert [row["name"] for row in content["results"]] == ["a"]
        assert (content["skipped"], list(path.parent.iterdir())) == ({"b": "no data"}, [path])
        assert machine.versions(["a-package-that-is-not-there"]) == {"a-package-that-is-not-there": None}


class TestOptions:
    def test_shrinks_collections_and_never_grows_them_nor_takes_too_few(self):
        assert (Options().sized(50_000), Options(nodes=2_000).sized(50_000)) == (50_000, 2_000)
        assert Options(nodes=2_000).sized(1_000) == 1_000
        for nodes in [-1, 0, 199]:
            with pytest.raises(ValueError, match="at least 200"):
                Options(nodes=nodes)


class TestMain:
    @pytest.fixture
    def results(self, tmp_path):
        return tmp_path / "latest.json"

    @pytest.fixture
    def run(self, results):
        def run(*arguments, **benchmarks):
            return main([*arguments, "--results", str(results)], benchmarks=benchmarks)

        return run

    def names(self, results):
        return [row["name"] for row in json.loads(results.read_text(encoding="utf-8"))["results"]]

    def test_unknown_names_and_too_few_nodes_are_refused(self, run, results, capsys):
        with pytest.raises(SystemExit) as exited:
            run("speling", spelling=lambda _: [], writing=lambda _: [])
        assert exited.value.code == 2
        error = capsys.readouterr().err
        assert "'speling'" in error
        assert "spelling, writing" in error
        assert not results.exists()
        with pytest.raises(SystemExit) as exited:
            run("--nodes", "5", a=lambda _: [])
        assert exited.value.code == 2
        assert "at least 200, got 5" in capsys.readouterr().err

    def test_runs_one_by_name_or_all_in_order_and_prints_one_table(self, run, results, capsys):
        rows = {name: [Row(name=f"row of {name}", ours=1.0, note=f"note of {name}")] for name in ("b", "a")}
        assert run(b=lambda _: rows["b"], a=lambda _: rows["a"]) == 0
        assert self.names(results) == ["row of b", "row of a"]
        out = capsys.readouterr().out
        assert out.count("times faster") == 1
        assert "note of a" in out
        given = []

        def wanted(options):
            given.append(options)
            return [Row(name="wanted", ours=1.0)]

        assert run("wanted", "--nodes", "300", wanted=wanted, other=lambda _: pytest.fail("not asked for")) == 0
        assert (given, self.names(results)) == ([Options(nodes=300)], ["wanted"])

    def test_a_skipped_one_gives_its_reason(self, run, results, capsys):
        without_data = Mock(side_effect=BenchmarkSkippedError("no [collections] here"))
        assert run(first=without_data, second=lambda _: [Row(name="second", ours=1.0)]) == 0
        assert "skipped first: no [collections] here" in capsys.readouterr().out
        assert self.names(results) == ["second"]
        assert json.loads(results.read_text(encoding="utf-8"))["skipped"] == {"first": "no [collections] here"}

    @pytest.mark.parametrize(("busy", "warned"), [(0.1, False), (None, False), (3.5, True)])
    def test_a_busy_machine_is_noted(self, run, results, capsys, monkeypatch, busy, warned):
        monkeypatch.setattr("benchmarks.__main__.load", lambda: busy)
        run(a=lambda _: [])
        assert ("load 3.5" in capsys.readouterr().err) is warned
        assert json.loads(results.read_text(encoding="utf-8"))["load_before"] == busy

    def test_what_was_measured_is_kept_when_a_later_one_fails(self, run, results):
        broken = Mock(side_effect=OSError("disk"))
        with pytest.raises(OSError, match="disk"):
            run(first=lambda _: [Row(name="first", ours=1.0)], second=broken)
        assert self.names(results) == ["first"]

    def test_the_known_benchmarks_and_quality_skipped_without_collections(self, tmp_path, monkeypatch):
        assert set(BENCHMARKS) >= {"vector_search", "ingest", "bm25", "bm25_quality", "startup", "router_overhead"}
        monkeypatch.setenv("RETRIEVAL_TEST_DATA", str(tmp_path))
        with pytest.raises(BenchmarkSkippedError, match="RETRIEVAL_TEST_DATA"):
            BENCHMARKS["bm25_quality"](Options())
        monkeypatch.delenv("QDRANT_URL", raising=False)
        with pytest.raises(BenchmarkSkippedError, match="QDRANT_URL"):
            BENCHMARKS["server"](Options())


class TestData:
    def test_texts_and_vectors_are_seeded_and_shaped(self):
        assert data.texts(20, seed=1, words=30) == data.texts(20, seed=1, words=30)
        assert data.texts(20, seed=1, words=30) != data.texts(20, seed=2, words=30)
        assert (data.unit_vectors(3, seed=1) == data.unit_vectors(3, seed=1)).all()
        vectors = data.unit_vectors(5, seed=1)
        assert vectors.shape == (5, data.DIMENSION)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
        words = " ".join(data.texts(300, seed=1, words=120)).split()
        counts = sorted(Counter(words).values(), reverse=True)
        assert 0.9 < len(words) / (300 * 120) < 1.1
        assert counts[0] > 30 * np.median(counts)
        texts = data.texts(10, seed=1, words=30)
        for question in data.questions(texts, 5, seed=1, words=4):
            assert any(set(question.split()) <= set(text.split()) for text in texts)

    def test_nodes_are_distinct_and_the_filters_leave_some(self):
        from agentic_retriever.filters import matches

        nodes = [node for batch in data.node_batches(1_500, seed=1) for node in batch]
        filters = data.three_clause_filters(4, seed=1)
        assert len({node.node_id for node in nodes}) == 1_500
        left = [sum(matches(node.metadata, one) for node in nodes) / 1_500 for one in filters]
        assert all(0.005 < share < 0.08 for share in left)

    def test_vectors_of_files_are_repeated_with_noise_and_each_question_is_asked_once(self, tmp_path):
        with pytest.raises(BenchmarkSkippedError, match="QDRANT_VECTORS"):
            server.Vectors.read(tmp_path)
        given = data.unit_vectors(6, seed=1)
        for name, some in {"a": given[:2], "b": given[2:]}.items():
            np.savez(tmp_path / f"{name}.npz", doc_vectors=some, query_vectors=some)
        vectors = server.Vectors.read(tmp_path)
        [nodes] = vectors.batches(40)
        cosines = np.array([node.embedding for node in nodes]) @ given.T
        assert (np.abs(cosines.max(axis=1) - 0.97) < 0.02).all()
        assert set(cosines.argmax(axis=1)) == set(range(6))
        np.testing.assert_array_equal(np.sort(vectors.asked, axis=0), np.sort(given, axis=0))


def test_work_at_a_server_counts_what_fails_and_acknowledged_nodes_that_are_gone():
    store = Mock(add=Mock(side_effect=[["a", "b"], StoreError("full")]), node_ids=lambda: ["a"])
    work = server_faults.Work()
    work.write(store, [[Mock(node_id="a"), Mock(node_id="b")], [Mock(node_id="c")]])
    told = work.told(store)
    assert (told["failed"], told["errors"]) == ({"queries": 0, "writes": 1}, {"StoreError: full": 1})
    assert (told["acknowledged"], told["lost"]) == (2, 1)


def test_a_trial_counts_what_the_patterns_of_its_questions_find(local_embedding, tmp_path, monkeypatch, capsys):
    asked = {"id": "eggs", "question": "How many eggs does a queen lay a day?", "index": "bees", "answerable": True}
    asked |= {"passage": r"queen\s+lays", "answer": "two thousand", "page": None}
    none = {"id": "none", "question": "Which tyres fit a lorry?", "answerable": False, "passage": None}
    (tmp_path / "files" / "bees").mkdir(parents=True)
    (tmp_path / "files" / "bees" / "bees.md").write_text("A queen lays about two thousand eggs a day.")
    (tmp_path / "indexes.json").write_text('{"bees": "Bees and their hives"}')
    questions = [asked, {**asked, "id": "wrong", "answer": "seventeen"}, {**asked, **none}]
    (tmp_path / "questions.json").write_text(json.dumps(questions))
    monkeypatch.setattr("sys.argv", ["trial", str(tmp_path), "--out", str(tmp_path / "out.json")])
    assert trial.main() == 0
    told = json.loads(capsys.readouterr().out)
    assert {told[name] for name in ("with an answer", "right index", "right passage in the first five")} == {2}
    assert (told["right answer"], told["wrongly declined"], told["of these declined"]) == (1, 0, 1)
    assert [one["right"] for one in json.loads((tmp_path / "out.json").read_text())] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "fits"), [("| honey | **20** kg |", 1), ("| kind |\n| --- |\n| honey | 2 | 20 kg |", 0)]
)
def test_a_pattern_of_a_trial_fits_words_without_the_marks_of_tables(text, fits):
    assert trial.found("(kind )?honey 20 kg", text) == fits
