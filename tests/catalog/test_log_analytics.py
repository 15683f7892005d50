import json
import math
import tempfile
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import environment, run_fresh, run_here
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_material import EPOCH, answer, entries, entry, moments, opened, write

from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.history import QueryLog
from agentic_retriever.catalog.history_database import HistoryDatabase as Database
from agentic_retriever.catalog.records import Analytics, CitedNode, Latency, LogEntry, make_entry, nearest_rank
from agentic_retriever.config import PREFIX
from agentic_retriever.errors import DeadlineExceededError, InvalidQueryError, UnknownQueryError
from agentic_retriever.schema import Confidence, Tier, TierUsage


def percentile(values, percent):
    """By the definition: the smallest value that at least ``percent`` of all do not exceed."""
    return min(v for v in values if sum(w <= v for w in values) * 100 >= percent * len(values))


def oracle(found):
    """Count in plain Python what analytics shall say."""
    fine = [e for e in found if not e.error]
    answered = [e for e in fine if e.tier not in {"", "none"}]
    compared = [e for e in found if e.cloud_only_usd is not None]
    times = {}
    for e in found:
        for step, ms in e.timings_ms.items():
            times.setdefault(step, []).append(ms)
    uncached = [e.timings_ms["total"] for e in found if "total" in e.timings_ms and not e.cached]
    if uncached and len(uncached) < len(times["total"]):
        times["uncached"] = uncached
    return {
        "queries": len(found), "answered": len(answered), "simple": sum(e.complexity == "simple" for e in found),
        "complex": sum(e.complexity == "complex" for e in found), "cached": sum(e.cached for e in fine),
        "degraded": sum(bool(e.degraded) for e in found), "local": sum(e.cloud_calls == 0 for e in answered),
        "failed": len(found) - len(fine), "llm_calls": sum(used.calls for e in found for used in e.spent),
        "prompt_tokens": sum(used.prompt_tokens for e in found for used in e.spent),
        "completion_tokens": sum(used.completion_tokens for e in found for used in e.spent),
        "usd": sum(used.usd for e in found for used in e.spent),
        "saved_usd": sum(e.cloud_only_usd - sum(u.usd for u in e.spent) for e in compared) if compared else None,
        "first_at": min((e.recorded_at for e in found), default=None),
        "last_at": max((e.recorded_at for e in found), default=None),
        "routes": Counter((e.index, e.strategy) for e in found), "tiers": Counter(e.tier for e in found if e.tier),
        "confidence_levels": Counter(e.confidence_level for e in found if e.confidence_level),
        "errors": Counter(e.error for e in found if e.error),
        "fallbacks": Counter(step for e in found for step in {lost.step for lost in e.degraded}),
        "latency_ms": {
            step: (len(v), math.fsum(v) / len(v), percentile(v, 50), percentile(v, 95), max(v))
            for step, v in times.items()
        },
    }  # fmt: skip


def said(found: Analytics):
    got = {name: getattr(found, name) for name in oracle([])}
    got["routes"] = Counter({(r.index, r.strategy): r.queries for r in found.routes})
    for name in ("tiers", "confidence_levels", "errors", "fallbacks"):
        got[name] = Counter(getattr(found, name))
    got["latency_ms"] = {s: (t.count, t.mean_ms, t.p50_ms, t.p95_ms, t.max_ms) for s, t in found.latency_ms.items()}
    return got


def assert_counts_as_plainly(database, found, since, until):
    if found:
        assert database.write([replace(e, entry_id=uuid4().hex) for e in found]) == len(found)
    got = said(database.analytics(since, until))
    after = [e for e in found if since is None or e.recorded_at >= since]
    wanted = oracle([e for e in after if until is None or e.recorded_at < until])
    times, expected = got.pop("latency_ms"), wanted.pop("latency_ms")
    assert times.keys() == expected.keys()
    for step, numbers in expected.items():
        assert times[step] == pytest.approx(numbers), step
    for name, value in wanted.items():
        assert got[name] == (pytest.approx(value) if isinstance(value, float) else value), name


@settings(max_examples=60, deadline=None)
@given(found=entries, since=moments, until=moments)
def test_analytics_agrees_with_plain_counting(found, since, until):
    with tempfile.TemporaryDirectory() as folder:
        assert_counts_as_plainly(Database(Address.of(Path(folder) / "q.sqlite"), text="plain"), found, since, until)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=entries, since=moments, until=moments)
def test_analytics_on_postgresql_agrees_with_plain_counting(postgres_url, found, since, until):
    address, later = Address.of(postgres_url), EPOCH + timedelta(days=2)
    old = Database(address, text="plain", retention_days=1, clock=lambda: later)
    if old.analytics(None, None).queries:
        old.prune()
    assert_counts_as_plainly(Database(address, text="plain"), found, since, until)


@given(values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200), percent=st.integers(1, 100))
def test_nearest_rank_is_its_definition(values, percent):
    assert nearest_rank(sorted(values), percent) == percentile(values, percent)
    assert (nearest_rank(range(1, 101), 95), nearest_rank(range(1, 21), 95)) == (95, 19)
    assert Latency.of([7.0]) == Latency(count=1, mean_ms=7.0, p50_ms=7.0, p95_ms=7.0, max_ms=7.0)


def test_times_come_from_the_newest_queries(place, monkeypatch):
    monkeypatch.setattr("agentic_retriever.catalog.history_database.MAX_TIMED_ROWS", 10)
    with opened(place) as log:
        for number in range(100):
            log.record(entry(number))
        found = log.analytics()
    assert (found.queries, found.timed, found.latency_ms["total"].p50_ms) == (100, 10, 94.0)


def test_shares_and_savings(place):
    cloud = TierUsage(tier=Tier.CLOUD, model="m", calls=1, prompt_tokens=5, completion_tokens=5, usd=0.25)
    with opened(place) as log:
        log.record(entry(1, tier="cloud", spent=(cloud,), cloud_only_usd=0.25))
        log.record(entry(2, tier="extractive", cloud_only_usd=0.5))
        log.record(entry(3, tier="primary", cached=True))
        log.record(entry(4, tier="none"))
        log.record(entry(5, tier="", error="FilterError"))
        found = log.analytics()
    assert (found.cache_hit_rate, found.local_share) == (pytest.approx(1 / 4), pytest.approx(2 / 3))
    assert (found.saved_usd, found.usd, found.failed) == (pytest.approx(0.5), pytest.approx(0.25), 1)


def test_nothing_recorded_is_no_error(place):
    with opened(place) as log:
        found = log.analytics()
        assert found == Analytics()
        with pytest.raises(TypeError):
            found.errors["x"] = 1
        assert log.list() == []
        assert (found.cache_hit_rate, found.local_share, found.saved_usd) == (None, None, None)
        assert "made with the first query" in log.check()
        json.dumps(found.to_dict(), allow_nan=False)
        assert found._repr_html_()


def test_periods_need_a_time_zone_and_any_will_do(place):
    east = timezone(timedelta(hours=7))
    with opened(place) as log:
        log.record(entry(0))
        assert log.analytics(EPOCH.astimezone(east), EPOCH.astimezone(east) + timedelta(seconds=1)).queries == 1
        assert log.analytics(EPOCH + timedelta(microseconds=1)).queries == 0
        assert log.analytics(until=EPOCH).queries == 0
        for name in ("since", "until"):
            with pytest.raises(InvalidQueryError, match=name):
                log.analytics(**{name: datetime(2026, 1, 1)})  # noqa: DTZ001 - the mistake


def test_shown_and_as_json(tmp_path):
    with opened(tmp_path / "q") as log:
        log.record(entry(1, index="<script>x</script>", error="E<b>", cloud_only_usd=0.1))
        found = log.analytics()
    drawn = found._repr_html_()
    assert [text in drawn for text in ("<script>", "E<b>", "&lt;script&gt;")] == [False, False, True]
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["routes"] == [{"index": "<script>x</script>", "strategy": "vector", "queries": 1}]
    assert (plain["saved_usd"], plain["latency_ms"]["total"]["p95_ms"]) == (pytest.approx(0.1), 1.0)
    assert datetime.fromisoformat(plain["first_at"]) == EPOCH + timedelta(seconds=1)
    assert {title for title, _, _ in found.tables()} == {"queries", "latency", "routes", "tiers", "errors"}


def test_entry_holds_what_the_answer_says():
    made = make_entry(answer(), cloud_only_usd=2.0)
    wanted = {
        "query": "What is new?", "query_id": "q-1", "complexity": "simple", "complexity_score": 0.25, "index": "news",
        "indexes": ("news", "spare"), "index_mode": "profile", "index_confidence": 0.75, "strategy": "hybrid",
        "strategy_mode": "heuristic", "strategy_confidence": 0.5, "tier": "cloud", "cached": False, "citations": 1,
        "confidence": 0.8, "confidence_level": "high", "cloud_calls": 2, "cloud_only_usd": 2.0, "error": "",
    }  # fmt: skip
    assert {name: getattr(made, name) for name in wanted} == wanted
    assert "What is new" not in repr(made)
    assert made.totals() == {"llm_calls": 3, "prompt_tokens": 110, "completion_tokens": 22, "usd": 0.5}
    assert dict(made.timings_ms) == {"total": 30.0, "retrieval": 10.0, "waiting": 3.0}
    assert [lost.step for lost in made.degraded] == ["hybrid.keyword"]
    json.dumps(made.to_dict(), allow_nan=False)


def test_failed_cached_and_odd_answers_keep_what_is_known():
    made = make_entry(answer(cached=True))
    assert (made.cached, made.tier, made.cloud_calls, any(made.totals().values())) == (True, "cloud", 0, False)
    assert replace(make_entry(answer()), spent=()).cloud_calls == 1
    error = DeadlineExceededError("secret words")
    made = make_entry(None, error=error, query="why", query_id="q-1", timings_ms={"total": 5.0})
    assert (made.error, made.query, made.query_id, made.tier) == ("DeadlineExceededError", "why", "q-1", "")
    assert (made.index, made.complexity, dict(made.timings_ms)) == ("", "", {"total": 5.0})
    assert "secret" not in repr(made)
    odd = answer(timings_ms={"total": float("nan"), "llm": float("inf"), "retrieval": 1.0})
    made = make_entry(odd, cloud_only_usd=float("nan"))
    assert dict(made.timings_ms) == {"retrieval": 1.0}
    assert made.cloud_only_usd is None


def test_entries_come_back_as_they_went_in(place):
    given = replace(make_entry(answer(), cloud_only_usd=2.0), recorded_at=entry(1).recorded_at, entry_id="a" * 32)
    failed = entry(2, error="FilterError", tier="", confidence=None)
    with opened(place) as log:
        log.record(given)
        log.record(failed)
        assert log.list() == [failed, replace(given, cited=())]
        assert log.list(limit=1) == log.list(offset=0)[:1] == [failed]
        assert log.list(offset=1) == [replace(given, cited=())]
        kept, [cited] = log.get("q-1"), given.cited
        assert replace(kept, cited=()) == replace(given, cited=())
        assert [one.to_dict() for one in kept.cited] == [{name: getattr(cited, name) for name in CitedNode.__slots__}]


def test_texts_that_databases_refuse_are_mended(place):
    odd = LogEntry(query="a\x00b\ud800c" + "x" * 50_000, index="i\x00", error="E\udfff")
    with opened(place) as log:
        log.record(odd)
        [kept] = log.list()
        assert log.stats().written == 1
    assert (kept.query[:6], len(kept.query)) == ("a\ufffdb\ufffdcx", 4_000)
    assert (kept.index, kept.error) == ("i\ufffd", "E\ufffd")


def test_an_entry_that_no_column_can_take_costs_only_itself(place):
    with opened(place) as log:
        log.record(entry(1))
        log.record(entry(2, citations=10**40))
        write(log, entry(3, recorded_at="yesterday"), entry(4))
        assert [found.query for found in log.list()] == ["question 4", "question 1"]
        assert (log.stats().written, log.stats().dropped) == (2, 2)


def test_an_answer_that_cannot_be_read_is_dropped_and_counted(tmp_path):
    with opened(tmp_path / "q") as log:
        log.record_answer(replace(answer(), confidence=None))
        log.record_answer(answer(), nonsense=1)
        assert log.stats().dropped == 2
        log.record_answer(replace(answer(), confidence=Confidence.of(0.1), tier=Tier.NONE))
        assert log.flush(10)
        assert log.stats().written == 1


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_recent_wants_a_number_in_range(tmp_path, count):
    with pytest.raises(InvalidQueryError, match="from 1 to"):
        QueryLog(tmp_path / "q").list(limit=count)


WAIT_S = 20


def stats(folder, *args, **settings):
    env = environment(**{PREFIX + name: value for name, value in settings.items()})
    return run_here(folder, "--data-dir", str(folder), "stats", *args, env=env)


@pytest.fixture
def folder(tmp_path):
    now = datetime.now(timezone.utc)
    with QueryLog(tmp_path / "queries.sqlite") as log:
        log.record_answer(answer(), cloud_only_usd=1.0)
        log.record(entry(1, index="bad\x1b[31m", recorded_at=now - timedelta(days=40)))
        assert log.flush(WAIT_S)
    return tmp_path


def test_the_command_shows_tables_of_the_last_days_and_all_there_is_and_json(folder):
    done = stats(folder)
    assert (done.returncode, done.stderr) == (0, "")
    told = ["queries\t1", "news\thybrid\t1", "saved usd against cloud only\t0.5000 of 1.0000", "hybrid.keyword\t1"]
    assert {*told, "total\t1\t30.0\t30.0\t30.0\t30.0"} <= set(done.stdout.splitlines())
    done = stats(folder, "--days", "0")
    assert "queries\t2" in done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    found = json.loads(stats(folder, "--json", "--days", "100").stdout)
    assert (found["queries"], found["saved_usd"]) == (2, 0.5)
    assert found["since"] < found["first_at"]


def test_nothing_yet_makes_no_file(tmp_path):
    done = stats(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no queries" in done.stderr
    assert json.loads(stats(tmp_path, "--json").stdout)["queries"] == 0
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_one_line_with_its_exit_code(folder):
    off = stats(folder, QUERY_LOG="none")
    assert (off.returncode, off.stderr.count("\n")) == (3, 1)
    assert "query_log is none" in off.stderr
    assert stats(folder, "--days", "-1").returncode == 2
    assert stats(folder, "--days", "nan").returncode in {2, 4}
    (folder / "catalog.sqlite").write_bytes(b"garbage" * 1_000)
    broken = stats(folder)
    assert (broken.returncode, broken.stderr.count("\n")) == (6, 1)
    assert "damaged" in broken.stderr
    gone = stats(folder, DATABASE_URL="postgresql://u:canary@127.0.0.1:1/db")
    assert gone.returncode == 6
    assert "canary" not in gone.stderr + gone.stdout


def test_help_loads_no_database_library():
    code = (
        "import sys\nsys.argv = ['x', 'stats', '--help']\nfrom agentic_retriever.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('llama_index', 'sqlalchemy')])"
    )
    done = run_fresh(code)
    assert done.stdout.strip().endswith("[]")


def test_feedback_conversations_and_users(place):
    with opened(place) as log:
        log.record_answer(answer(), asker={"user_id": "ana", "conversation_id": "c1"})
        log.record_answer(answer(query_id="q-2"), asker={"user_id": "ben"})
        log.record_answer(None, error=DeadlineExceededError("x"), query_id="q-3", asker={"conversation_id": "c1"})
        assert [one.query_id for one in log.list(conversation_id="c1")] == ["q-3", "q-1"]
        assert [one.query_id for one in log.list(user_id="ben")] == ["q-2"]
        assert log.list(user_id="") == log.list(limit=1)
        assert log.get("q-1").answer_text == "text [1]"
        log.add_feedback("q-1", rating=5, comment="good\0", user_id="ana")
        log.add_feedback("q-1", rating=1)
        [first, second] = log.get("q-1").feedback
        assert (first.rating, first.comment, first.user_id, first.created_at) == (5, "good\ufffd", "ana", log._clock())
        assert (second.rating, second.comment, second.user_id) == (1, "", "")
        assert log.get("q-2").feedback == ()
        for rating in (0, 6, True, 2.5, "5"):
            with pytest.raises(InvalidQueryError, match="from 1 to 5"):
                log.add_feedback("q-1", rating=rating)
        for unknown in (lambda: log.get("q-9"), lambda: log.get(""), lambda: log.add_feedback("q-9", rating=3)):
            with pytest.raises(UnknownQueryError, match="has no query"):
                unknown()


def test_what_leaves_the_history_takes_its_citations_and_feedback_along(place):
    now = [EPOCH]
    with opened(place, retention_days=2, clock=lambda: now[0]) as log:
        log.record_answer(answer())
        log.add_feedback("q-1", rating=5)
    now[0] = EPOCH + timedelta(days=3)
    with opened(place, retention_days=2, clock=lambda: now[0]) as log:
        log.record_answer(answer(query_id="q-2"))
        assert [one.query_id for one in log.list()] == ["q-2"]
    with Database(Address.of(place), text="plain").reading() as connection:
        for table, count in (("query_citations", 1), ("feedback", 0)):
            assert connection.exec_driver_sql(f"SELECT COUNT(*) FROM agentic_retriever_{table}").scalar() == count
