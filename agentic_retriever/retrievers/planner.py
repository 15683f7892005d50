"""Strategy ``planner``: a question is split, its parts are searched for side by side, and the results are merged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore

from agentic_retriever.errors import AgenticRetrieverError, LLMOutputError, RetrievalError
from agentic_retriever.indices import Index
from agentic_retriever.llm import ModelClient, ask, containers, json_values, random_boundary, without_thoughts
from agentic_retriever.llm.prompts import plan_prompt
from agentic_retriever.retrievers.base import (
    AdapterSettings,
    RetrievalRequest,
    RetrieverAdapter,
    Scores,
    SearchResult,
    run_sides,
    source_scores,
    with_hidden_metadata,
)
from agentic_retriever.retrievers.fusion import unit_scores
from agentic_retriever.retrievers.hybrid import HybridRetriever
from agentic_retriever.retrievers.splitting import MAX_PARTS, MIN_PARTS, distinct, split_question
from agentic_retriever.schema import Degradation, Strategy
from agentic_retriever.text import Tokenizer, count_overlap, detect_language

PARTS_KEY: Final = "retrieval_parts"
"""Metadata key of a planned result, beside ``retrieval``: the questions that the node was found for, such as
``["margin in 2024", "margin in 2025"]``; the whole question is among them where it found the node."""

Retrieve: TypeAlias = Callable[[RetrievalRequest], SearchResult]
"""How a part is searched for."""

DEPTH_FACTOR: Final = 2
MIN_DEPTH: Final = 20


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

    def _search(self, request: RetrievalRequest, deadline: float) -> SearchResult:
        parts, degraded = self._plan(request, self._left_s(deadline))
        if len(parts) < MIN_PARTS:
            whole = self._one(request, deadline)
            return replace(whole, degraded=(*degraded, *whole.degraded), sources=_by_source(whole.nodes))
        asked = {"question": replace(request, top_k=max(DEPTH_FACTOR * request.top_k, MIN_DEPTH))}
        for i, part in enumerate(parts, start=1):
            asked[f"part {i}"] = replace(asked["question"], query=part, query_vector=None)
        results, errors = run_sides(
            self._settings.workers,
            {name: partial(self._one, single, deadline) for name, single in asked.items()},
            timeout_s=partial(self._left_s, deadline),
        )
        if not results:
            causes = "; ".join(f"{name}: {err}" for name, err in errors.items())
            raise RetrievalError(f"every part of the question failed: {causes}", errors) from errors["question"]
        degraded += [
            Degradation(step=f"planner.{name}", reason=str(err), fallback="the other parts of the question")
            for name, err in errors.items()
        ]
        degraded += [step for result in results.values() for step in result.degraded]
        merged = merge_parts(
            {asked[name].query: result.nodes for name, result in results.items()},
            request.query,
            tokenizer=Tokenizer(detect_language(request.query)),
            top_k=request.top_k,
        )
        return replace(merged, degraded=tuple(dict.fromkeys(degraded)))

    def _plan(self, request: RetrievalRequest, left_s: float) -> tuple[tuple[str, ...], list[Degradation]]:
        client = request.model or self._settings.model
        degraded: list[Degradation] = []
        if client is not None:
            try:
                # Half of the time at most, so that the searches can still follow.
                return plan_by_model(client, request.query, timeout_s=left_s / 2), []
            except AgenticRetrieverError as err:
                degraded = [Degradation(step="planner.plan", reason=str(err), fallback="splitting by words")]
        return split_question(request.query), degraded

    def _one(self, request: RetrievalRequest, deadline: float) -> SearchResult:
        return self._retrieve_part(replace(request, timeout_s=self._left_s(deadline)))


def _by_source(nodes: Sequence[NodeWithScore]) -> dict[str, dict[str, float | None]]:
    """Return what sources gave the nodes of a result, by source."""
    found: dict[str, dict[str, float | None]] = {}
    for one in nodes:
        for name, score in source_scores(one.node).items():
            found.setdefault(name, {})[one.node.node_id] = score
    return found


# Merging what was found for the parts of a question: one ranking, in which every part keeps its best node.

SIMILARITY_WEIGHT: Final = 0.7
OVERLAP_WEIGHT: Final = 0.3

SIMILARITY: Final = "similarity"
OVERLAP: Final = "overlap"
"""Names in the per-source scores of a planned result, each in [0, 1]."""


@dataclass(slots=True)
class _Hit:
    found: NodeWithScore
    by_part: dict[str, float]

    @property
    def similarity(self) -> float:
        return max(self.by_part.values())


def merge_parts(
    found: Mapping[str, Sequence[NodeWithScore]], query: str, *, tokenizer: Tokenizer, top_k: int
) -> SearchResult:
    """Merge the results of several questions.

    A node's score is 0.7 times its similarity plus 0.3 times its keyword overlap, both in [0, 1]. Its similarity is the
    best of its scores under any part, brought to [0, 1] within each part; its overlap is the share of the terms of the
    question, and of what the parts that found it add to them, that occur in it.
    """
    hits: dict[str, _Hit] = {}
    best: list[str] = []
    for part in sorted(found, key=lambda part: part != query):
        scores = unit_scores([(one.node.node_id, one.score) for one in found[part]])
        best += list(scores)[:1]
        for one in found[part]:
            node_id = one.node.node_id
            hit = hits.setdefault(node_id, _Hit(one, {}))
            hit.by_part[part] = max(scores[node_id], hit.by_part.get(part, 0.0))
    terms = {part: tokenizer.query_tokens(part) for part in {query, *found}}
    overlaps = {node_id: _overlap(hit, query, terms, tokenizer) for node_id, hit in hits.items()}
    totals = {i: SIMILARITY_WEIGHT * hit.similarity + OVERLAP_WEIGHT * overlaps[i] for i, hit in hits.items()}
    order = sorted(totals, key=lambda node_id: (-totals[node_id], node_id))
    kept = dict.fromkeys(list(dict.fromkeys(best))[:top_k])
    kept |= dict.fromkeys([node_id for node_id in order if node_id not in kept][: top_k - len(kept)])
    chosen = [node_id for node_id in order if node_id in kept]
    sources: dict[str, Scores] = dict(_by_source([hits[i].found for i in chosen]))
    sources |= {SIMILARITY: {i: hits[i].similarity for i in chosen}, OVERLAP: {i: overlaps[i] for i in chosen}}
    return SearchResult([NodeWithScore(node=_with_parts(hits[i]), score=totals[i]) for i in chosen], sources=sources)


def _overlap(hit: _Hit, query: str, terms: Mapping[str, Sequence[str]], tokenizer: Tokenizer) -> float:
    wanted = [term for part in (query, *hit.by_part) for term in terms[part]]
    return count_overlap(wanted, tokenizer.tokens(hit.found.node.get_content(metadata_mode=MetadataMode.EMBED)))


def _with_parts(hit: _Hit) -> BaseNode:
    return with_hidden_metadata(hit.found.node, **{PARTS_KEY: list(hit.by_part)})


# The parts of a question as a model sees them.

MAX_PART_CHARS: Final = 400
"""Longer parts are no questions, and are dropped."""

_QUESTION_KEYS: Final = ("question", "sub_question", "query", "text")
_ITEM: Final = re.compile(r"^\s{0,8}(?:[-*•]|\(?\d{1,2}[.):])\s+(\S.{0,2000})$", re.MULTILINE)


def plan_by_model(
    client: ModelClient,
    query: str,
    *,
    timeout_s: float,
    boundary: Callable[[], str] = random_boundary,
) -> tuple[str, ...]:
    """Ask a model for the parts of a question; one call."""
    reply = ask(client, lambda mark: plan_prompt(query, MAX_PARTS, mark), timeout_s=timeout_s, boundary=boundary)
    return distinct((part for part in parse_plan(reply.text) if len(part) <= MAX_PART_CHARS), query)[:MAX_PARTS]


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
