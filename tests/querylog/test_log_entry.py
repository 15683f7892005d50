from __future__ import annotations

import json
from dataclasses import replace

import pytest
from log_material import answer, entry, opened, write

from agentic_retriever.errors import DeadlineExceededError
from agentic_retriever.querylog import LogEntry, QueryLog, entry_of
from agentic_retriever.schema import Confidence, Tier


def test_entry_holds_what_the_answer_says():
    made = entry_of(answer(), cloud_only_usd=2.0)
    assert made.query == "What is new?"
    assert (made.query_id, made.complexity, made.complexity_score) == ("q-1", "simple", 0.25)
    assert (made.index, made.indexes, made.index_mode, made.index_confidence) == (
        "news", ("news", "spare"), "profile", 0.75,
    )  # fmt: skip
    assert (made.strategy, made.strategy_mode, made.strategy_confidence) == ("hybrid", "heuristic", 0.5)
    assert (made.tier, made.cached, made.citations, made.confidence, made.confidence_level) == (
        "cloud", False, 1, 0.8, "high",
    )  # fmt: skip
    assert made.totals() == {"llm_calls": 3, "prompt_tokens": 110, "completion_tokens": 22, "usd": 0.5}
    assert (made.cloud_calls, made.cloud_only_usd, made.error) == (2, 2.0, "")
    assert dict(made.timings_ms) == {"total": 30.0, "retrieval": 10.0, "waiting": 3.0}
    assert [lost.step for lost in made.degraded] == ["hybrid.keyword"]
    json.dumps(made.to_dict(), allow_nan=False)


def test_a_cached_answer_cost_nothing():
    made = entry_of(answer(cached=True))
    assert (made.cached, made.tier, made.cloud_calls) == (True, "cloud", 0)
    assert not any(made.totals().values())


def test_a_cloud_answer_without_counts_is_no_local_one():
    assert replace(entry_of(answer()), spent=()).cloud_calls == 1


def test_a_failed_query_keeps_what_was_known():
    error = DeadlineExceededError("secret words")
    made = entry_of(None, error=error, query="why", query_id="q-1", timings_ms={"total": 5.0})
    assert (made.error, made.query, made.query_id, made.tier) == ("DeadlineExceededError", "why", "q-1", "")
    assert (made.index, made.complexity, dict(made.timings_ms)) == ("", "", {"total": 5.0})
    assert "secret" not in repr(made)


def test_numbers_that_are_not_finite_are_left_out():
    odd = answer(timings_ms={"total": float("nan"), "llm": float("inf"), "retrieval": 1.0})
    made = entry_of(odd, cloud_only_usd=float("nan"))
    assert dict(made.timings_ms) == {"retrieval": 1.0}
    assert made.cloud_only_usd is None


def test_the_question_is_not_in_the_repr():
    assert "What is new" not in repr(entry_of(answer()))


def test_entries_come_back_as_they_went_in(place):
    given = replace(entry_of(answer(), cloud_only_usd=2.0), recorded_at=entry(1).recorded_at, entry_id="a" * 32)
    failed = entry(2, error="FilterError", tier="", confidence=None)
    with opened(place) as log:
        log.record(given)
        log.record(failed)
        assert log.recent() == (failed, given)
        assert log.recent(1) == (failed,)


def test_texts_that_databases_refuse_are_mended(place):
    odd = LogEntry(query="a\x00b\ud800c" + "x" * 50_000, index="i\x00", error="E\udfff")
    with opened(place) as log:
        log.record(odd)
        [kept] = log.recent()
        assert log.stats().written == 1
    assert kept.query[:6] == "a\ufffdb\ufffdcx"
    assert len(kept.query) == 4_000
    assert (kept.index, kept.error) == ("i\ufffd", "E\ufffd")


def test_an_entry_that_no_column_can_take_costs_only_itself(place):
    with opened(place) as log:
        log.record(entry(1))
        log.record(entry(2, citations=10**40))
        write(log, entry(3, recorded_at="yesterday"), entry(4))
        assert [found.query for found in log.recent()] == ["question 4", "question 1"]
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
    from agentic_retriever.errors import InvalidQueryError

    with pytest.raises(InvalidQueryError, match="from 1 to"):
        QueryLog(tmp_path / "q").recent(count)
