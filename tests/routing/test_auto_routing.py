from __future__ import annotations

import pytest
from routing_material import make_card

from agentic_retriever.errors import LLMError
from agentic_retriever.llm import LLMClient
from agentic_retriever.routing import (
    AutoClassifier,
    AutoSelector,
    HeuristicSelector,
    IndexClassifier,
    LLMClassifier,
    LLMSelector,
    ProfileClassifier,
    StrategySelector,
)
from agentic_retriever.schema import Budget, Degradation, Selection, Strategy, Tier
from agentic_retriever.testing import FakeLLM

CARDS = [make_card(Strategy.VECTOR), make_card(Strategy.HYBRID)]


class Evidence:
    """Decides as it is told, whatever the question."""

    mode = "profile"

    def __init__(self, share=0.9, *, abstained=False):
        self.share, self.abstained = share, abstained

    def classify(self, query, profiles, *, query_vector, allowance=None):
        names = [profile.name for profile in profiles]
        if len(names) == 1:
            return Selection(name=names[0], confidence=1, scores={names[0]: 1.0}, margin=1, reason="", mode="only")
        return self._selection(names)

    def select(self, query, cards, *, features, allowance=None):
        return self._selection([card.strategy.value for card in cards])

    def _selection(self, names):
        first, second = names
        return Selection(
            name=first, confidence=self.share, scores={first: self.share, second: 1 - self.share},
            margin=2 * self.share - 1, reason="as told", mode="profile", abstained=self.abstained,
            degraded=(Degradation(step="embedding", reason="down", fallback="words"),),
        )  # fmt: skip


def model(*replies):
    llm = FakeLLM(list(replies))
    return LLMClient(llm, tier=Tier.PRIMARY, timeout_s=5), llm


def auto_index(evidence, *replies, **options):
    client, llm = model(*replies)
    return AutoClassifier(evidence, LLMClassifier(client, evidence), **options), llm


def auto_strategy(evidence, *replies, **options):
    client, llm = model(*replies)
    return AutoSelector(evidence, LLMSelector(client, evidence), **options), llm


def test_a_clear_lead_needs_no_model(boats, bread):
    auto, llm = auto_index(Evidence(0.9), "bread")
    selection = auto.classify("q", [boats, bread], query_vector=None)
    assert (selection.name, selection.mode, selection.escalated, llm.prompts) == ("boats", "profile", False, [])


@pytest.mark.parametrize(
    ("evidence", "options"),
    [(Evidence(0.55), {}), (Evidence(0.9, abstained=True), {}), (Evidence(0.9), {"margin": 0.9})],
)
def test_a_small_lead_or_abstention_is_put_to_the_model(boats, bread, evidence, options):
    auto, llm = auto_index(evidence, "bread", **options)
    selection = auto.classify("q", [boats, bread], query_vector=None)
    assert (selection.name, selection.mode, selection.escalated) == ("bread", "llm", True)
    assert len(llm.prompts) == len(selection.spent) == 1
    assert [lost.step for lost in selection.degraded] == ["embedding"], "what fell back before is kept"


def test_a_model_that_fails_leaves_the_evidence_and_is_told(boats, bread):
    auto, _ = auto_index(Evidence(0.55), LLMError("down"))
    selection = auto.classify("q", [boats, bread], query_vector=None)
    assert (selection.name, selection.mode, selection.escalated) == ("boats", "profile", True)
    assert [lost.step for lost in selection.degraded] == ["embedding", "routing.index.llm"]


def test_a_budget_without_calls_leaves_the_base_decision_as_it_is(boats, bread):
    allowance = Budget(max_llm_calls=0)
    evidence = Evidence(0.55)
    auto, llm = auto_index(evidence, "bread")
    selection = auto.classify("q", [boats, bread], query_vector=None, allowance=allowance)
    assert selection == evidence.classify("q", [boats, bread], query_vector=None)
    assert llm.prompts == []
    strategy, llm = auto_strategy(Evidence(0.2), "hybrid")
    chosen = strategy.select("q", CARDS, features={}, allowance=allowance)
    assert (chosen.name, len(chosen.degraded), llm.prompts) == ("vector", 1, [])


def test_without_a_model_the_base_decides(boats, bread):
    evidence = Evidence(0.55)
    selection = AutoClassifier(evidence, None).classify("q", [boats, bread], query_vector=None)
    assert (selection.name, selection.escalated, selection.mode) == ("boats", False, "profile")
    chosen = AutoSelector(evidence, None, min_confidence=1.0).select("q", CARDS, features={})
    assert (chosen.name, chosen.escalated) == ("vector", False)


def test_one_candidate_is_no_decision(boats):
    auto, llm = auto_index(Evidence(0.5), "boats", margin=1.0)
    assert auto.classify("q", [boats], query_vector=None).mode == "only"
    assert llm.prompts == []


def test_an_unsure_selector_asks_and_a_sure_one_does_not():
    auto, llm = auto_strategy(Evidence(0.6), "STRATEGY: hybrid\nCONFIDENCE: 0.7", min_confidence=0.5)
    assert auto.select("q", CARDS, features={}).escalated is False
    assert llm.prompts == []
    auto, llm = auto_strategy(Evidence(0.6), "STRATEGY: hybrid\nCONFIDENCE: 0.7", min_confidence=0.65)
    selection = auto.select("q", CARDS, features={})
    assert (selection.name, selection.escalated, selection.mode) == ("hybrid", True, "llm")
    assert selection.confidence == pytest.approx(0.7 + 0.3 * 0.4)


def test_the_real_parts_fit_together(boats, bread, all_cards):
    client, _ = model("bread", "summary")
    base = ProfileClassifier()
    auto = AutoClassifier(base, LLMClassifier(client, base), margin=1.0)
    assert auto.classify("bread and boats", [boats, bread], query_vector=None).name == "bread"
    selector = AutoSelector(
        HeuristicSelector(), LLMSelector(client, HeuristicSelector(), form="word"), min_confidence=1.0
    )
    assert selector.select("q", all_cards, features={}).name == "summary"
    for part, protocol in ((auto, IndexClassifier), (selector, StrategySelector)):
        assert isinstance(part, protocol)
        assert part.mode == "auto"
