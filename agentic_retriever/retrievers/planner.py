"""Strategy ``planner``: a question is split, its parts are searched for side by side, and the results are merged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from llama_index.core.schema import MetadataMode

from agentic_retriever.errors import AgenticRetrieverError, LLMOutputError, RetrievalError
from agentic_retriever.llm import ask, containers, json_values, random_boundary, without_thoughts
from agentic_retriever.llm.prompts import plan_prompt
from agentic_retriever.retrievers.base import (
    Candidate,
    Found,
    RetrievalRequest,
    RetrieverAdapter,
    SearchResult,
    run_sides,
    source_scores,
)
from agentic_retriever.retrievers.fusion import ranked
from agentic_retriever.retrievers.hybrid import HybridRetriever
from agentic_retriever.retrievers.splitting import MIN_PARTS, MOST_PARTS, distinct, split_question
from agentic_retriever.schema import Degradation, Strategy
from agentic_retriever.text import Tokenizer, count_overlap, detect_language

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.callbacks.base import CallbackManager
    from llama_index.core.schema import BaseNode, NodeWithScore

    from agentic_retriever.indices import Index
    from agentic_retriever.llm import ModelClient
    from agentic_retriever.retrievers.base import AdapterSettings


# Merging what was found for the parts of a question: one ranking, in which every part keeps its best node.

PARTS_KEY: Final = "retrieval_parts"
"""Metadata key of a planned result, beside ``retrieval``: the questions that the node was found for, such as
``["margin in 2024", "margin in 2025"]``; the whole question is among them where it found the node."""

SIMILARITY_WEIGHT: Final = 0.7
OVERLAP_WEIGHT: Final = 0.3

SIMILARITY: Final = "similarity"
OVERLAP: Final = "overlap"
"""Names in the per-source scores of a planned result, each in [0, 1]."""


@dataclass(slots=True)
class _Hit:
    node: BaseNode
    by_part: dict[str, float]
    sources: Mapping[str, float]

    @property
    def similarity(self) -> float:
        return max(self.by_part.values())


def merge_parts(
    found: Mapping[str, Sequence[NodeWithScore]], query: str, *, tokenizer: Tokenizer, top_k: int
) -> tuple[Candidate, ...]:
    """Merge the results of several questions.

    A node's score is 0.7 times its similarity plus 0.3 times its keyword overlap, both in [0, 1]. Its similarity is the
    best of its scores under any part, brought to [0, 1] within each part; its overlap is the share of the terms of the
    question, and of what the parts that found it add to them, that occur in it.
    """
    hits: dict[str, _Hit] = {}
    best: list[str] = []
    for part in sorted(found, key=lambda part: part != query):
        scores = _to_unit({n.node.node_id: n.score for n in found[part]})
        best += list(scores)[:1]
        for entry in found[part]:
            node_id = entry.node.node_id
            hit = hits.setdefault(node_id, _Hit(entry.node, {}, source_scores(entry.node)))
            hit.by_part[part] = max(scores[node_id], hit.by_part.get(part, 0.0))
    terms = {part: tokenizer.query_tokens(part) for part in {query, *found}}
    overlaps = {node_id: _overlap(hit, query, terms, tokenizer) for node_id, hit in hits.items()}
    totals = {i: SIMILARITY_WEIGHT * hit.similarity + OVERLAP_WEIGHT * overlaps[i] for i, hit in hits.items()}
    order = sorted(totals, key=lambda node_id: (-totals[node_id], node_id))
    kept = dict.fromkeys(list(dict.fromkeys(best))[:top_k])
    kept |= dict.fromkeys([node_id for node_id in order if node_id not in kept][: top_k - len(kept)])
    return tuple(_candidate(hits[node_id], totals[node_id], overlaps[node_id]) for node_id in order if node_id in kept)


def _to_unit(scores: Mapping[str, float | None]) -> dict[str, float]:
    """Bring scores to [0, 1], best first; what has no score gets 0."""
    order = ranked(list(scores.items()))
    finite = [score for _, score in order if score is not None]
    if not finite:
        return {node_id: 0.0 for node_id, _ in order}
    low, span = finite[-1], finite[0] - finite[-1]
    if not (span > 0 and math.isfinite(span)):
        return {node_id: float(score is not None) for node_id, score in order}
    return {node_id: 0.0 if score is None else (score - low) / span for node_id, score in order}


def _overlap(hit: _Hit, query: str, terms: Mapping[str, Sequence[str]], tokenizer: Tokenizer) -> float:
    wanted = [term for part in (query, *hit.by_part) for term in terms[part]]
    return count_overlap(wanted, tokenizer.tokens(hit.node.get_content(metadata_mode=MetadataMode.EMBED)))


def _candidate(hit: _Hit, score: float, overlap: float) -> Candidate:
    sources = {**hit.sources, SIMILARITY: hit.similarity, OVERLAP: overlap}
    return Candidate(_with_parts(hit.node, list(hit.by_part)), score, sources)


def _with_parts(node: BaseNode, parts: list[str]) -> BaseNode:
    """Copy a node as far as it changes, and note its parts where neither prompts nor embeddings have them."""
    excluded = {
        name: [*getattr(node, name), PARTS_KEY]
        for name in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys")
    }
    return node.model_copy(update={"metadata": {**node.metadata, PARTS_KEY: parts}, **excluded})


# The parts of a question as a model sees them.

MAX_PART_CHARS: Final = 400
"""Longer parts are no questions, and are dropped."""

_QUESTION_KEYS: Final = ("question", "sub_question", "query", "text")
_ITEM: Final = re.compile(r"^\s{0,8}(?:[-*•]|\(?\d{1,2}[.):])\s+(\S.{0,2000})$", re.MULTILINE)


def plan_by_model(
    client: ModelClient,
    query: str,
    *,
    max_parts: int,
    timeout_s: float | None = None,
    boundary: Callable[[], str] = random_boundary,
) -> tuple[str, ...]:
    """Ask a model for the parts of a question; one call."""
    limit = min(max_parts, MOST_PARTS)
    reply = ask(client, lambda mark: plan_prompt(query, limit, mark), timeout_s=timeout_s, boundary=boundary)
    return distinct((part for part in parse_plan(reply.text) if len(part) <= MAX_PART_CHARS), query)[:limit]


def parse_plan(reply: str) -> list[str]:
    """Read a list of questions out of a reply."""
    text = without_thoughts(reply)
    listed = _json_list(text)
    if listed is not None:
        return listed
    lines = [match[1].strip() for match in _ITEM.finditer(text)]
    if lines:
        return lines
    raise LLMOutputError(f"the plan is no list of questions ({len(reply):,} characters); take another model")


def _json_list(text: str) -> list[str] | None:
    """Find the first JSON list that is empty or holds questions; other lists may belong to the words around it."""
    for container in containers(json_values(text)):
        if isinstance(container, list):
            questions = [question for question in map(_question, container) if question]
            if questions or not container:
                return questions
    return None


def _question(item: object) -> str:
    if isinstance(item, dict):
        item = next((item[key] for key in _QUESTION_KEYS if isinstance(item.get(key), str)), "")
    return item.strip() if isinstance(item, str) else ""


Retrieve = Callable[[RetrievalRequest], SearchResult]
"""How a part is searched for."""

DEPTH_FACTOR = 2
MIN_DEPTH = 20


class PlannerRetriever(RetrieverAdapter):
    """Answers for questions that ask for several things: comparisons, several questions, facts of several documents.

    The parts come from the model in the settings where there is one, else from the words of the question; the whole
    question is searched for beside them, so that a bad split costs little. Every part is searched for by ``retrieve``,
    never by a planner, so plans do not nest. A question that cannot be split gives exactly what ``retrieve`` gives.

    The scores of a split question are 0.7 times similarity plus 0.3 times keyword overlap, see ``merge_parts``; each
    node names the questions that found it under the metadata key ``PARTS_KEY``. A part that fails is left out.
    """

    strategy = Strategy.PLANNER

    def __init__(
        self,
        index: Index,
        settings: AdapterSettings,
        *,
        retrieve: Retrieve | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(index, settings, callback_manager=callback_manager)
        self._retrieve_part: Retrieve = retrieve or HybridRetriever(index, settings).search

    def _search(self, request: RetrievalRequest, deadline: float | None) -> Found:
        def left() -> float | None:
            return None if deadline is None else deadline - self._settings.timer()

        parts, degraded = self._plan(request, left())
        if len(parts) < MIN_PARTS:
            return _as_found(self._one(request, left), degraded)
        depth = max(DEPTH_FACTOR * request.top_k, MIN_DEPTH)
        whole = replace(request, top_k=depth)
        asked = {"question": whole}
        asked |= {f"part {i}": replace(whole, query=part, query_vector=None) for i, part in enumerate(parts, start=1)}
        results, errors = run_sides(
            self._settings.workers,
            {name: partial(self._one, single, left) for name, single in asked.items()},
            timeout_s=left,
        )
        if not results:
            told = "; ".join(f"{name}: {err}" for name, err in errors.items())
            raise RetrievalError(f"every part of the question failed: {told}", errors) from errors["question"]
        degraded += [_left_out(name, err) for name, err in errors.items()]
        degraded += [step for result in results.values() for step in result.degraded]
        candidates = merge_parts(
            {asked[name].query: result.nodes for name, result in results.items()},
            request.query,
            tokenizer=Tokenizer(detect_language(request.query)),
            top_k=request.top_k,
        )
        return Found(candidates, tuple(dict.fromkeys(degraded)))

    def _plan(self, request: RetrievalRequest, left_s: float | None) -> tuple[tuple[str, ...], list[Degradation]]:
        query, limit = request.query, self._settings.planner_parts
        client = request.model or self._settings.model
        if client is None:
            return split_question(query, max_parts=limit), []
        try:
            # Half of the time at most, so that the searches can still follow.
            return plan_by_model(client, query, max_parts=limit, timeout_s=None if left_s is None else left_s / 2), []
        except AgenticRetrieverError as err:
            step = Degradation(step="planner.plan", reason=str(err), fallback="splitting by words")
            return split_question(query, max_parts=limit), [step]

    def _one(self, request: RetrievalRequest, left: Callable[[], float | None]) -> SearchResult:
        return self._retrieve_part(replace(request, timeout_s=left()))


def _as_found(result: SearchResult, degraded: list[Degradation]) -> Found:
    candidates = tuple(Candidate(n.node, n.score, source_scores(n.node)) for n in result.nodes)
    return Found(candidates, (*degraded, *result.degraded))


def _left_out(name: str, err: AgenticRetrieverError) -> Degradation:
    return Degradation(step=f"planner.{name}", reason=str(err), fallback="the other parts of the question")
