"""Answers, entries and strategies for the tests of the query history."""

from datetime import datetime, timedelta, timezone

from hypothesis import strategies as st

from agentic_retriever.catalog.history import LogEntry, QueryLog
from agentic_retriever.schema import (
    Answer,
    Citation,
    Complexity,
    Confidence,
    Degradation,
    RouteDecision,
    Selection,
    Tier,
    TierUsage,
    Usage,
)

EPOCH = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def selection(name, *, mode="profile", confidence=0.75):
    return Selection(
        name=name, confidence=confidence, scores={name: confidence}, margin=0.5, reason="near", mode=mode,
        names=(name, "spare"),
    )  # fmt: skip


def route(query="What is new?", **changes):
    given = {
        "index": selection("news"), "strategy": selection("hybrid", mode="heuristic", confidence=0.5),
        "complexity": Complexity.SIMPLE, "complexity_score": 0.25,
        "degraded": (Degradation(step="embedding", reason="gone", fallback="words only"),),
    }  # fmt: skip
    return RouteDecision(query=query, **{**given, **changes})


def answer(**changes):
    citation = Citation(number=1, doc_id="d", node_id="n", start=0, end=4, quote="text", score=1.0)
    cloud = TierUsage(tier=Tier.CLOUD, model="m", calls=2, prompt_tokens=100, completion_tokens=20, usd=0.5)
    primary = TierUsage(tier=Tier.PRIMARY, model="p", calls=1, prompt_tokens=10, completion_tokens=2, usd=0.0)
    given = {
        "text": "text [1]", "citations": (citation,), "confidence": Confidence.of(0.8), "route": route(), "nodes": (),
        "usage": Usage((cloud, primary)), "timings_ms": {"total": 30.0, "retrieval": 10.0, "waiting": 3.0},
        "tier": Tier.CLOUD, "cached": False,
        "degraded": (Degradation(step="hybrid.keyword", reason="no postings", fallback="dense"),), "query_id": "q-1",
    }  # fmt: skip
    return Answer(**{**given, **changes})


def entry(number=0, **changes):
    given = {
        "query": f"question {number}", "entry_id": f"{number:032x}",
        "recorded_at": EPOCH + timedelta(seconds=number), "index": "news", "strategy": "vector",
        "complexity": "simple", "tier": "extractive", "timings_ms": {"total": float(number)},
    }  # fmt: skip
    return LogEntry(**{**given, **changes})


_names = st.sampled_from(["", "a", "b", "index é"])
_steps = st.sampled_from(["total", "routing", "retrieval", "llm", "waiting", "naïve"])
_milliseconds = st.floats(0, 1e6)
_tokens = st.integers(0, 10_000)
_spent = st.builds(
    TierUsage, tier=st.sampled_from([Tier.CLOUD, Tier.PRIMARY]), model=st.just("m"), calls=st.integers(0, 3),
    prompt_tokens=_tokens, completion_tokens=_tokens, usd=st.floats(0, 10),
)  # fmt: skip
_degraded = st.builds(
    Degradation, step=st.sampled_from(["llm", "keyword", 'od"d']), reason=st.text(max_size=5), fallback=st.just("x")
)
_moments = st.integers(0, 2_000_000).map(lambda n: EPOCH + timedelta(milliseconds=n))

#: Lists of entries with all that analytics counts, in any mixture.
entries = st.lists(
    st.builds(
        LogEntry, query=st.text(max_size=10), recorded_at=_moments,
        complexity=st.sampled_from(["", "simple", "complex"]), index=_names, strategy=_names,
        tier=st.sampled_from(["", *(tier.value for tier in Tier)]), cached=st.booleans(),
        timings_ms=st.dictionaries(_steps, _milliseconds), spent=st.lists(_spent, max_size=2).map(tuple),
        cloud_only_usd=st.none() | st.floats(0, 10), confidence=st.none() | st.floats(0, 1),
        confidence_level=st.sampled_from(["", "high", "not_found"]),
        degraded=st.lists(_degraded, max_size=3).map(tuple),
        error=st.sampled_from(["", "", "", "DeadlineExceededError", "FilterError"]),
    ),
    max_size=25,
)  # fmt: skip
moments = st.none() | _moments


def write(log, *given):
    """Record entries, and see that they are written."""
    for one in given:
        log.record(one)
    assert log.flush(60)


def opened(place, **changes):
    """Open a history whose present moment is an hour after the first entry."""
    return QueryLog(place, **{"clock": lambda: EPOCH + timedelta(hours=1), **changes})
