"""Decisions as a notebook draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentic_retriever.schema.markup import (
    Html,
    bar,
    details,
    duration,
    element,
    frame,
    joined,
    note,
    shortened,
    small,
    table,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentic_retriever.schema.decision import Difference, RouteDecision, RouteDiff
    from agentic_retriever.schema.routing import Degradation, Selection
    from agentic_retriever.schema.usage import Usage

_MAX_QUERY_CHARS = 300
_MAX_ROWS = 12
_MIN_SIGNAL = 0.005
_CHOICES: Final = frozenset({"query", "index.name", "index.names", "index.abstained", "strategy.name", "complexity"})


def draw_decision(decision: RouteDecision) -> str:
    """Draw a decision: both stages with every candidate, the complexity, and what fell back."""
    return frame(
        element("div", element("b", shortened(decision.query, _MAX_QUERY_CHARS)), dir="auto"),
        decision_parts(decision),
    )


def draw_selection(selection: Selection) -> str:
    """Draw one stage."""
    return frame(_stage("", selection, ()), fallen_back(selection.degraded))


def draw_diff(diff: RouteDiff) -> str:
    """Draw what differs between two decisions."""
    if not diff:
        return frame(small("no difference"))
    same = "The choice is the same" if diff.same_choice else "The choice is another"
    choices = [one for one in diff.differences if one.path in _CHOICES]
    others = [one for one in diff.differences if one.path not in _CHOICES]
    return frame(
        element("div", same),
        _differences(choices) if choices else "",
        details(f"{len(others)} other differences", _differences(others)) if others else "",
    )


def decision_parts(decision: RouteDecision) -> Html:
    """Write what a decision holds, without the question."""
    because = f": {', '.join(decision.complexity_reasons)}" if decision.complexity_reasons else ""
    withheld = [(name, why) for name, why in decision.withheld.items()]
    signals = [
        f"{name.replace('_', ' ')} {value:.2f}"
        for name, value in sorted(decision.features.items(), key=lambda item: (-item[1], item[0]))
        if value >= _MIN_SIGNAL
    ]
    return joined(
        [
            _stage("Index", decision.index, ()),
            _stage("Strategy", decision.strategy, withheld),
            element("div", f"Complexity: {decision.complexity.value}, {decision.complexity_score:.2f}{because}"),
            small(f"Signals: {', '.join(signals)}") if signals else "",
            fallen_back(decision.degraded),
            small(joined(costs(decision.timings_ms, decision.usage), " · ")),
        ]
    )


def fallen_back(degraded: Iterable[Degradation]) -> Html:
    """Write the steps that fell back, one line each."""
    return joined(note(f"Fell back: {lost.step} to {lost.fallback}: {lost.reason}") for lost in degraded)


def costs(timings_ms: Mapping[str, float], usage: Usage) -> list[str]:
    """Say what was spent: times by step, calls, tokens and money."""
    said = [f"{name} {duration(ms)}" for name, ms in timings_ms.items()]
    if usage.llm_calls:
        tokens = sum(one.prompt_tokens + one.completion_tokens for one in usage.tiers)
        said.append(f"{usage.llm_calls} model calls, {tokens:,} tokens, {usage.usd:.5f} USD")
    return said


def _differences(shown: Iterable[Difference]) -> Html:
    rows = [[one.path, _value(one.before), _value(one.after)] for one in shown]
    return table(["what", "before", "after"], rows, names=3)


def _stage(title: str, stage: Selection, withheld: Iterable[tuple[str, str]]) -> Html:
    asked = ", the model was asked" if stage.escalated else ""
    said = f"{stage.mode}{asked}, probability {stage.confidence:.2f}, margin {stage.margin:.2f}"
    parts: list[object] = [
        element("div", f"{title}: " if title else "", element("b", ", ".join(stage.names)), f" ({said})"),
        small(stage.reason),
    ]
    if stage.abstained:
        parts.append(note("out of scope: no candidate seems to be about this"))
    if len(stage.scores) > 1:
        parts.append(details(f"{len(stage.scores)} candidates", _candidates(stage)))
    parts += [small(f"not offered: {name}: {why}") for name, why in withheld]
    return element("div", *parts, style="margin:.3em 0")


def _candidates(stage: Selection) -> Html:
    shown = list(stage.scores.items())[:_MAX_ROWS]
    kinds = list(dict.fromkeys(kind for name, _ in shown for kind in stage.evidence.get(name, {})))
    rows = []
    for name, score in shown:
        named: object = element("b", name) if name in stage.names else name
        found = stage.evidence.get(name, {})
        cells = [f"{found[kind]:.2f}" if kind in found else "" for kind in kinds]
        rows.append([named, bar(score, f"{score:.3f}"), f"{score:.3f}", *cells])
    left = len(stage.scores) - len(shown)
    more = small(f"and {left} more") if left else text("")
    return joined([table(["candidate", "", "score", *kinds], rows), more])


def _value(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.3f}" if isinstance(value, float) else shortened(str(value), _MAX_QUERY_CHARS)
