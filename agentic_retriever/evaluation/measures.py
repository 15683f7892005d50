"""Quality of rankings by ``ir_measures``, on documents."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index.core.schema import NodeWithScore

BENCH_HINT: Final = "needs the extra 'bench': pip install 'agentic-retriever[bench]'"
"""What to do when a library of the extra is missing."""

MEASURES: Final = ("nDCG@10", "R@10", "R@100", "RR", "AP")
"""The measures of a benchmark, as ``ir_measures`` writes them; the first one is what strategies are compared by."""


def fold_to_documents(nodes: Iterable[NodeWithScore]) -> list[str]:
    """Rank documents by the best of their nodes.

    Args:
        nodes: A result of retrieval, best first.

    Returns:
        Each document once, best first; the node's own id where it belongs to no document.
    """
    best: dict[str, float] = {}
    for node in nodes:
        doc_id = str(node.node.ref_doc_id or node.node.node_id)
        score = float("-inf") if node.score is None else float(node.score)
        best[doc_id] = max(best.get(doc_id, float("-inf")), score)
    # The sort is stable, so equals stay in the order in which a reader meets them.
    return sorted(best, key=lambda doc_id: -best[doc_id])


def ndcg_by_query(
    qrels: Mapping[str, Mapping[str, int]], rankings: Mapping[str, Sequence[str]], *, cutoff: int = 10
) -> dict[str, float]:
    """Measure each ranking by normalised discounted cumulative gain (K. Järvelin and J. Kekäläinen, TOIS 2002).

    Args:
        qrels: Grade of each judged document, from 0, by query.
        rankings: Document ids, best first, by query; a query without one counts as one that found nothing.
        cutoff: How many documents count.

    Returns:
        nDCG in [0, 1] for each query of ``qrels``.

    Raises:
        ConfigError: If the extra ``bench`` is not installed.
    """
    measures = _ir_measures()
    wanted = measures.nDCG @ cutoff
    judged = {query: dict(grades) for query, grades in qrels.items()}
    # Ranks as scores, so that ties are not broken anew by the ids of documents.
    run = {
        query: {doc_id: float(len(ranking) - at) for at, doc_id in enumerate(ranking)}
        for query, ranking in rankings.items()
        if ranking
    }
    found = dict.fromkeys(qrels, 0.0)
    for metric in measures.iter_calc([wanted], judged, run):
        if metric.query_id in found:
            found[metric.query_id] = float(metric.value)
    return found


def measure_rankings(
    qrels: Mapping[str, Mapping[str, int]], rankings: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Measure each ranking by all of ``MEASURES``.

    Args:
        qrels: Grade of each judged document, from 0, by query.
        rankings: Document ids, best first, by query; a query without one counts as one that found nothing.

    Returns:
        For each query of ``qrels`` its value by each measure, all in [0, 1]; 0 where nothing was found, and where a
        measure gave no finite number.

    Raises:
        ConfigError: If the extra ``bench`` is not installed.
    """
    library = _ir_measures()
    wanted = {library.parse_measure(name): name for name in MEASURES}
    judged = {query: dict(grades) for query, grades in qrels.items()}
    run = {
        query: {doc_id: float(len(ranking) - at) for at, doc_id in enumerate(ranking)}
        for query, ranking in rankings.items()
        if ranking
    }
    found = {query: dict.fromkeys(MEASURES, 0.0) for query in qrels}
    for metric in library.iter_calc(list(wanted), judged, run) if run else ():
        value = float(metric.value)
        if metric.query_id in found and math.isfinite(value):
            found[metric.query_id][wanted[metric.measure]] = value
    return found


def _ir_measures() -> Any:  # noqa: ANN401 - an optional module
    try:
        return importlib.import_module("ir_measures")
    except ImportError as err:
        raise ConfigError(f"measuring retrieval {BENCH_HINT}") from err
