"""A LlamaIndex response synthesizer as the writer of our answers, its citations looked up as those of any model."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_index.core.schema import NodeWithScore, QueryBundle

from agentic_retriever.errors import BudgetExceededError, SynthesisError
from agentic_retriever.llm import LLMReply, estimate_tokens
from agentic_retriever.schema import Tier
from agentic_retriever.synthesis.llm_answer import citation_check, read_answer
from agentic_retriever.threads import DeadlineCaller, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from llama_index.core.response_synthesizers import BaseSynthesizer

    from agentic_retriever.llm import TierNeeds
    from agentic_retriever.synthesis.context import ContextPassage
    from agentic_retriever.synthesis.llm_answer import LLMAnswer
    from agentic_retriever.synthesis.rewriting import Unsupported
    from agentic_retriever.synthesis.values import StreamControl

_DEFAULT_S = 60.0

#: What LlamaIndex says when its model said nothing.
_BLANK = "Empty Response"


class ForeignModel:
    """How the model behind a response synthesizer is named in the accounts."""

    tier = Tier.PRIMARY

    def __init__(self, synthesizer: BaseSynthesizer) -> None:
        metadata = getattr(getattr(synthesizer, "_llm", None), "metadata", None)
        name = getattr(metadata, "model_name", None) or "unknown"
        self.model = f"{type(synthesizer).__name__}:{name}"


class ForeignSynthesizer:
    """Lets a LlamaIndex response synthesizer write the answers.

    It reads the passages numbered ``[1]``, ``[2]`` and so on, so that its model may cite them; sentences that cite
    nothing get the passage that supports them. Its call counts as one call of one model with tokens that are estimated
    and a price that is not known. A streamed answer comes as one piece.

    Args:
        synthesizer: What writes.
        unsupported: What becomes of sentences that the passages do not support, as for ``LLMSynthesizer``.
        timer: Seconds that only grow, for timings.
    """

    def __init__(
        self,
        synthesizer: BaseSynthesizer,
        *,
        unsupported: Unsupported = "flag",
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = ForeignModel(synthesizer)
        self._synthesizer = synthesizer
        self._unsupported = unsupported
        self._timer = timer
        self._caller = DeadlineCaller(f"the response synthesizer {type(synthesizer).__name__}", max_calls=32)

    def answer(
        self,
        query: str,
        passages: Sequence[ContextPassage],
        *,
        language: str = "und",
        timeout_s: float | None = None,
        needs: TierNeeds | None = None,
        index_of: Callable[[str], str] = lambda _node_id: "",
    ) -> LLMAnswer:
        """Answer a question from passages; arguments as ``LLMSynthesizer.answer``.

        Raises:
            BudgetExceededError: If money is limited, since nobody knows what the synthesizer spends.
            DeadlineExceededError: If it did not answer in time.
            LLMOutputError: If the answer is blank.
            SynthesisError: If it failed.
        """
        if needs is not None and needs.max_usd is not None:
            raise BudgetExceededError(f"what {self.client.model} costs is not known, so a budget in USD forbids it")
        nodes = [_numbered(passage) for passage in passages]
        started = self._timer()
        text = self._written(query, nodes, _DEFAULT_S if timeout_s is None else timeout_s)
        reply = LLMReply(
            text=text,
            model=self.client.model,
            tier=self.client.tier,
            prompt_tokens=sum(estimate_tokens(passage.text) for passage in passages) + estimate_tokens(query),
            completion_tokens=estimate_tokens(text),
            truncated=False,
            seconds=self._timer() - started,
            priced=False,
        )
        return read_answer(reply, citation_check(passages, language, index_of, self._unsupported), len(passages))

    def stream(
        self,
        query: str,
        passages: Sequence[ContextPassage],
        *,
        control: StreamControl | None = None,  # noqa: ARG002 - the signature of LLMSynthesizer; the call cannot be cut
        **options: Any,  # noqa: ANN401 - as for answer
    ) -> Generator[str, None, LLMAnswer]:
        """Do as :meth:`answer`; the whole text comes as one piece."""
        answer = self.answer(query, passages, **options)
        if answer.cited is not None and answer.cited.text:
            yield answer.cited.text
        return answer

    def _written(self, query: str, nodes: list[NodeWithScore], timeout_s: float) -> str:
        def write() -> str:
            response = self._synthesizer.synthesize(QueryBundle(query), nodes)
            text = "" if getattr(response, "response", "") is None else str(response)  # reads a stream to its end
            return "" if text.strip() == _BLANK else text

        return guarded(self._caller.what, partial(self._caller.call, write, timeout_s), error=SynthesisError)


def _numbered(passage: ContextPassage) -> NodeWithScore:
    """Return a copy of the passage's node that shows a model its number and header, and no other metadata."""
    node = passage.node.node.model_copy()
    node.metadata = dict(node.metadata)
    node.excluded_llm_metadata_keys = list(node.metadata)
    node.set_content("\n".join(part for part in (f"[{passage.number}] {passage.header}".strip(), passage.text) if part))
    return NodeWithScore(node=node, score=passage.node.score)
