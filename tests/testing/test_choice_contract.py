"""The published contract, run against every place that reads what a model chose."""

import numpy as np
import pytest
from llama_index.core.schema import NodeWithScore, TextNode

from agentic_retriever.errors import LLMOutputError
from agentic_retriever.indices.profile import ProfiledNode, make_profile
from agentic_retriever.llm import LLMReply, read_choice, result_of
from agentic_retriever.retrievers.planner import parse_plan
from agentic_retriever.retrievers.refining import parse_order
from agentic_retriever.routing import HeuristicSelector, LLMClassifier, LLMSelector, ProfileClassifier
from agentic_retriever.schema import Strategy, StrategyCard, Tier
from agentic_retriever.synthesis import LLMSynthesizer
from agentic_retriever.synthesis.context import assemble
from agentic_retriever.testing import choice_contract
from agentic_retriever.understanding.understanding import MAX_CLAUSES, OPERATORS, read_reply


class Scripted:
    """Replies with one text; blank ones too, which a real client refuses."""

    tier = Tier.PRIMARY
    model = "scripted"
    context_tokens = 8_192

    def __init__(self, reply: str) -> None:
        self.reply = reply

    def complete(self, prompt, *, timeout_s=None, needs=None):
        return LLMReply(
            text=self.reply, model="scripted", tier=self.tier, prompt_tokens=1, completion_tokens=1, truncated=False,
            seconds=0.0,
        )  # fmt: skip


def settled(selection):
    """The model's choice, or ``None`` where the decision fell back, as it must say."""
    assert sum(selection.scores.values()) == pytest.approx(1.0)
    assert selection.name == next(iter(selection.scores))
    if selection.mode == "llm":
        assert selection.degraded == ()
        return selection.name
    (lost,) = selection.degraded
    assert lost.fallback == selection.mode
    assert [(usage.calls, usage.model) for usage in selection.spent] == [(1, "scripted")]
    return None


class TestReadChoice(choice_contract.ChoiceReaderContract):
    def read(self, reply):
        return read_choice(reply, self.options).name


class TestReadChoiceOfNamesInManyForms(choice_contract.ChoiceReaderContract):
    options = ("กฎหมาย", "xquad-en", "chunk_decoupling", "xquad", "2024 reports")

    def read(self, reply):
        return read_choice(reply, self.options).name


def profile_of(name, text):
    empty = np.zeros((0, 4), np.float32)
    return make_profile(
        [ProfiledNode(name, text, {})], empty, name=name, description=text, description_vector=empty[0:0], version=1
    )


class TestLLMClassifier(choice_contract.ChoiceReaderContract):
    options = ("alpha", "beta", "gamma")
    profiles = tuple(profile_of(name, f"words about {name}") for name in options)

    def read(self, reply):
        classifier = LLMClassifier(Scripted(reply), ProfileClassifier())
        return settled(classifier.classify("what about it", self.profiles, query_vector=None))


class OfStrategies(choice_contract.ChoiceReaderContract):
    options = ("vector", "hybrid", "chunk_decoupling")
    form: str

    def read(self, reply):
        cards = [
            StrategyCard(strategy=Strategy(name), description="", needs=(), cost=1.0, typical_ms=1.0)
            for name in self.options
        ]
        selector = LLMSelector(Scripted(reply), HeuristicSelector(), form=self.form)
        return settled(selector.select("what about it", cards, features={}))


class TestStructuredSelector(OfStrategies):
    form = "structured"


class TestWordSelector(OfStrategies):
    form = "word"


class TestOrders(choice_contract.ReplyReaderContract):
    def read(self, reply):
        return parse_order(reply, 3)

    def check(self, found):
        assert found
        assert len(set(found)) == len(found)
        assert set(found) <= {1, 2, 3}


class TestPlans(choice_contract.ReplyReaderContract):
    def read(self, reply):
        return parse_plan(reply)

    def check(self, found):
        assert all(isinstance(part, str) and part.strip() for part in found)


class TestFilters(choice_contract.ReplyReaderContract):
    def read(self, reply):
        return read_reply(reply)

    def check(self, found):
        if found is not None:
            assert len(found) <= MAX_CLAUSES
            assert all(asked.op in OPERATORS and asked.values for asked in found)


def test_the_suite_is_as_large_as_it_says():
    names = [case.name for case in choice_contract.MALFORMED_REPLIES]
    assert len(names) >= 60
    assert len(set(names)) == len(names)
    assert sum(case.expected is None for case in choice_contract.MALFORMED_REPLIES) >= 40
    assert all(len(reply) <= 1_000_100 for reply in choice_contract.HEAVY_REPLIES.values())


class Careless(choice_contract.ChoiceReaderContract):
    """Reads as most code does; the suite must find it out."""

    def read(self, reply):
        import json

        value = json.loads(reply[reply.index("{") : reply.rindex("}") + 1])
        return self.options[int(value["choice"]) - 1]

    def check(self, found):
        assert found in self.options


class Credulous(choice_contract.ChoiceReaderContract):
    def read(self, reply):
        for option in self.options:
            if option in reply:
                return option
        raise LLMOutputError("none")


def test_a_careless_reader_does_not_pass():
    with pytest.raises(AssertionError, match="instead of an LLMOutputError"):
        Careless().test_no_reply_breaks_the_reader()
    with pytest.raises(AssertionError, match="denial and choice"):
        Credulous().test_every_case()


class TestAnswers(choice_contract.ReplyReaderContract):
    """A cited answer or "no answer"; the passages decide what can be cited."""

    def read(self, reply):
        node = NodeWithScore(
            node=TextNode(id_="n1", text="Bikes are due on Monday. Fines start at 5 euros."), score=0.9
        )
        passages = assemble([node], max_chars=1_000)
        return result_of(LLMSynthesizer(Scripted(reply)).write("when are bikes due", passages, language="en"))

    def check(self, found):
        if found.cited is not None:
            assert {citation.node_id for citation in found.cited.citations} <= {"n1"}
