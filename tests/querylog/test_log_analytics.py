from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_material import EPOCH, entries, entry, moments, opened

from agentic_retriever.errors import InvalidQueryError
from agentic_retriever.querylog import Analytics
from agentic_retriever.querylog.database import Database
from agentic_retriever.querylog.records import Address, Latency, nearest_rank
from agentic_retriever.schema import Tier, TierUsage


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
        "queries": len(found),
        "answered": len(answered),
        "simple": sum(e.complexity == "simple" for e in found),
        "complex": sum(e.complexity == "complex" for e in found),
        "cached": sum(e.cached for e in fine),
        "degraded": sum(bool(e.degraded) for e in found),
        "local": sum(e.cloud_calls == 0 for e in answered),
        "failed": len(found) - len(fine),
        "llm_calls": sum(used.calls for e in found for used in e.spent),
        "prompt_tokens": sum(used.prompt_tokens for e in found for used in e.spent),
        "completion_tokens": sum(used.completion_tokens for e in found for used in e.spent),
        "usd": sum(used.usd for e in found for used in e.spent),
        "saved_usd": sum(e.cloud_only_usd - sum(u.usd for u in e.spent) for e in compared) if compared else None,
        "first_at": min((e.recorded_at for e in found), default=None),
        "last_at": max((e.recorded_at for e in found), default=None),
        "routes": Counter((e.index, e.strategy) for e in found),
        "tiers": Counter(e.tier for e in found if e.tier),
        "confidence_levels": Counter(e.confidence_level for e in found if e.confidence_level),
        "errors": Counter(e.error for e in found if e.error),
        "fallbacks": Counter(step for e in found for step in {lost.step for lost in e.degraded}),
        "latency_ms": {
            step: (len(v), math.fsum(v) / len(v), percentile(v, 50), percentile(v, 95), max(v))
            for step, v in times.items()
        },
    }


def said(found: Analytics):
    got = {name: getattr(found, name) for name in oracle([])}
    got["routes"] = Counter({(r.index, r.strategy): r.queries for r in found.routes})
    for name in ("tiers", "confidence_levels", "errors", "fallbacks"):
        got[name] = Counter(getattr(found, name))
    got["latency_ms"] = {s: (t.count, t.mean_ms, t.p50_ms, t.p95_ms, t.max_ms) for s, t in found.latency_ms.items()}
    return got


def assert_as_counted(got, wanted):
    for name, value in wanted.items():
        if name == "latency_ms":
            assert got[name].keys() == value.keys()
            for step, numbers in value.items():
                assert got[name][step] == pytest.approx(numbers), step
        else:
            assert got[name] == (pytest.approx(value) if isinstance(value, float) else value), name


def measured(database, found, since, until):
    if found:
        kept = [replace(e, entry_id=uuid4().hex) for e in found]
        assert database.write(kept) == len(found)
    return database.analytics(since, until)


def in_period(found, since, until):
    return [e for e in found if (since is None or e.recorded_at >= since) and (until is None or e.recorded_at < until)]


@settings(max_examples=60, deadline=None)
@given(found=entries, since=moments, until=moments)
def test_analytics_agrees_with_plain_counting(found, since, until):
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Address.of(Path(folder) / "q.sqlite"), text="plain")
        got = measured(database, found, since, until)
    assert_as_counted(said(got), oracle(in_period(found, since, until)))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=entries, since=moments, until=moments)
def test_analytics_on_postgresql_agrees_with_plain_counting(postgres_url, found, since, until):
    database = Database(
        Address.of(postgres_url), text="plain", retention_days=1, clock=lambda: EPOCH + timedelta(days=2)
    )
    if database.analytics(None, None).queries:
        database.prune()
    database = Database(Address.of(postgres_url), text="plain")
    got = measured(database, found, since, until)
    assert_as_counted(said(got), oracle(in_period(found, since, until)))


@given(values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200), percent=st.integers(1, 100))
def test_nearest_rank_is_its_definition(values, percent):
    assert nearest_rank(sorted(values), percent) == percentile(values, percent)


def test_percentiles_at_the_edges():
    assert nearest_rank(range(1, 101), 95) == 95
    assert nearest_rank(range(1, 21), 95) == 19
    assert Latency.of([7.0]) == Latency(count=1, mean_ms=7.0, p50_ms=7.0, p95_ms=7.0, max_ms=7.0)


def test_times_come_from_the_newest_queries(place, monkeypatch):
    monkeypatch.setattr("agentic_retriever.querylog.database.MAX_TIMED_ROWS", 10)
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
    assert found.cache_hit_rate == pytest.approx(1 / 4)
    assert found.local_share == pytest.approx(2 / 3)
    assert found.saved_usd == pytest.approx(0.5)
    assert (found.usd, found.failed) == (pytest.approx(0.25), 1)


def test_nothing_recorded_is_no_error(place):
    with opened(place) as log:
        found = log.analytics()
        assert found == Analytics()
        assert log.recent() == ()
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
    assert "<script>" not in drawn
    assert "&lt;script&gt;" in drawn
    assert "E<b>" not in drawn
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["routes"] == [{"index": "<script>x</script>", "strategy": "vector", "queries": 1}]
    assert plain["saved_usd"] == pytest.approx(0.1)
    assert plain["latency_ms"]["total"]["p95_ms"] == 1.0
    assert datetime.fromisoformat(plain["first_at"]) == EPOCH + timedelta(seconds=1)
    assert {title for title, _, _ in found.tables()} == {"queries", "latency", "routes", "tiers", "errors"}


def test_analytics_is_frozen():
    with pytest.raises(TypeError):
        Analytics().errors["x"] = 1
