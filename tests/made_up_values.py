"""Values of a query made up: by hypothesis, and by hand with one text wherever a text goes."""

from hypothesis import strategies as st
from llama_index.core.schema import NodeWithScore, TextNode

from agentic_retriever.schema import (
    Answer,
    Attempt,
    Citation,
    Complexity,
    Confidence,
    Degradation,
    FailureKind,
    RouteDecision,
    Selection,
    SentenceCheck,
    Strategy,
    Tier,
    TierUsage,
    Tried,
    Usage,
)

TEXTS = st.text(max_size=12)
NAMES = st.text(min_size=1, max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 10**9)
SHARES = st.floats(0, 1)


def tuples(inner, most=2):
    return st.lists(inner, max_size=most).map(tuple)


LOST = st.builds(Degradation, step=TEXTS, reason=TEXTS, fallback=TEXTS)
SPENT = st.builds(
    TierUsage, tier=st.sampled_from(Tier), model=TEXTS, calls=COUNTS, prompt_tokens=COUNTS, completion_tokens=COUNTS,
    usd=st.floats(0, 1e6),
)  # fmt: skip
SELECTIONS = st.builds(
    Selection, name=NAMES, names=tuples(NAMES), confidence=SHARES, scores=st.dictionaries(NAMES, SHARES, max_size=3),
    margin=SHARES, reason=TEXTS, mode=TEXTS, abstained=st.booleans(), escalated=st.booleans(),
    evidence=st.dictionaries(NAMES, st.dictionaries(NAMES, NUMBERS, max_size=2), max_size=2), degraded=tuples(LOST),
    spent=tuples(SPENT),
)  # fmt: skip
ROUTES = st.builds(
    RouteDecision, query=st.text(max_size=40), index=SELECTIONS, strategy=SELECTIONS,
    complexity=st.sampled_from(Complexity), complexity_score=SHARES, complexity_reasons=tuples(NAMES),
    features=st.dictionaries(NAMES, NUMBERS, max_size=3), timings_ms=st.dictionaries(NAMES, NUMBERS, max_size=3),
    degraded=tuples(LOST), withheld=st.dictionaries(NAMES, NAMES, max_size=2),
    versions=st.dictionaries(NAMES, st.integers(0, 99), max_size=2),
)  # fmt: skip
CITATIONS = st.builds(
    Citation, number=COUNTS, doc_id=TEXTS, node_id=TEXTS, start=COUNTS, end=COUNTS, quote=TEXTS, score=SHARES,
    index=TEXTS, title=TEXTS, section=TEXTS, page=st.none() | COUNTS,
)  # fmt: skip
CHECKS = st.builds(
    SentenceCheck, start=COUNTS, end=COUNTS, text=TEXTS, supported=st.booleans(), score=SHARES,
    citations=tuples(COUNTS), problems=tuples(TEXTS),
)  # fmt: skip
ATTEMPTS = st.builds(
    Attempt, tier=st.sampled_from(Tier), model=TEXTS, failure=st.none() | st.sampled_from(FailureKind),
    seconds=SHARES, requests=COUNTS, prompt_tokens=COUNTS, completion_tokens=COUNTS, usd=st.none() | SHARES,
)  # fmt: skip
TRIED = st.builds(
    Tried, strategy=st.sampled_from(Strategy), confidence=st.none() | SHARES, nodes=COUNTS, ms=st.floats(0, 1e6)
)


def answers(nodes):
    """Draw answers with such nodes."""
    return st.builds(
        Answer, text=st.text(alphabet=st.characters(), max_size=40), citations=tuples(CITATIONS, 3),
        confidence=SHARES.map(Confidence.of), route=ROUTES, nodes=tuples(nodes, 3), usage=tuples(SPENT, 3).map(Usage),
        timings_ms=st.dictionaries(NAMES, NUMBERS, max_size=3), tier=st.sampled_from(Tier), cached=st.booleans(),
        degraded=tuples(LOST), query_id=TEXTS, understood=tuples(TEXTS), tried=tuples(TRIED), checks=tuples(CHECKS),
        attempts=tuples(ATTEMPTS), nodes_left_out=COUNTS,
    )  # fmt: skip


def selection(t):
    return Selection(
        name=t, confidence=0.5, scores={t: 0.7, "b" + t: 0.3}, margin=0.4, reason=t, mode=t, names=(t,), abstained=True,
        escalated=True, evidence={t: {t: 1.0}}, degraded=(Degradation(step=t, reason=t, fallback=t),),
    )  # fmt: skip


def decision(t):
    return RouteDecision(
        query=t, index=selection(t), strategy=selection(t), complexity=Complexity.SIMPLE, complexity_score=0.2,
        complexity_reasons=(t,), features={t: 0.5}, timings_ms={t: 3.0}, withheld={t: t},
        degraded=(Degradation(step=t, reason=t, fallback=t),),
    )  # fmt: skip


def found(t):
    return NodeWithScore(node=TextNode(text=t, id_="n", metadata={"title": t, "section": t}), score=0.5)


def citation(number, t):
    return Citation(number=number, doc_id=t, node_id=t, start=0, end=4, quote=t, score=1.0, index=t, title=t, section=t)


def answer(t, *, words=None, checks=()):
    usage = Usage((TierUsage(tier=Tier.PRIMARY, model=t, calls=1, prompt_tokens=9, completion_tokens=1, usd=0.001),))
    return Answer(
        text=t if words is None else words, citations=(citation(1, t), citation(2, t)), confidence=Confidence.of(0.9),
        route=decision(t), nodes=(found(t),), usage=usage, timings_ms={t: 1.0, "total": 1234.0}, tier=Tier.PRIMARY,
        cached=False, degraded=(Degradation(step=t, reason=t, fallback=t),), query_id=t, understood=(t,), checks=checks,
        tried=(Tried(strategy=Strategy.VECTOR, confidence=None, nodes=1, ms=2.0),),
        attempts=(Attempt(tier=Tier.PRIMARY, model=t),),
    )  # fmt: skip
