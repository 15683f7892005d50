"""How well BM25 ranks in several languages, beside LlamaIndex's retriever as it comes."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import BenchmarkSkippedError, Row, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.harness import Options

TOP_K = 10
COLLECTIONS = {"xquad-th": "th", "xquad-es": "es", "xquad-en": "en", "cranfield": "en"}
TARGETS = {"xquad-th": 0.95, "xquad-es": 0.95}

Qrels = dict[str, dict[str, int]]


def run(options: Options) -> list[Row]:  # noqa: ARG001 - a collection is measured whole or not at all
    """Measure nDCG@10 on the public test collections.

    Raises:
        BenchmarkSkippedError: If they are not there.
    """
    root = Path(os.environ.get("RETRIEVAL_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data") / "collections"
    found = {name: language for name, language in COLLECTIONS.items() if (root / name / "corpus.jsonl").is_file()}
    if not found:
        raise BenchmarkSkippedError("no test collections; set RETRIEVAL_TEST_DATA to the folder that has them")
    return [_row(root / name, language) for name, language in found.items()]


def _row(folder: Path, language: str) -> Row:
    documents = {
        line["_id"]: f"{line.get('title', '')}\n{line['text']}".strip() for line in _lines(folder / "corpus.jsonl")
    }
    queries = {line["_id"]: line["text"] for line in _lines(folder / "queries.jsonl")}
    qrels = _qrels(folder / "qrels" / "test.tsv")
    asked = {query_id: queries[query_id] for query_id in qrels}
    return Row(
        name=f"bm25_quality: {folder.name}",
        unit=Unit.NDCG10,
        ours=_ndcg10(qrels, asked, _ours(documents, language)),
        peer="BM25Retriever, defaults",
        peer_value=_ndcg10(qrels, asked, _peer(documents)),
        target=TARGETS.get(folder.name),
        note=f"{len(documents):,} documents, {len(asked):,} queries",
    )


def _ours(documents: Mapping[str, str], language: str) -> Callable[[str], dict[str, float]]:
    from agentic_retriever.indices import KeywordIndex
    from agentic_retriever.text import Tokenizer

    index = KeywordIndex.build(documents.items(), tokenizer=Tokenizer(language=language), version=1)
    return lambda query: dict(index.search(query, TOP_K))


def _peer(documents: Mapping[str, str]) -> Callable[[str], dict[str, float]]:
    from llama_index.core.schema import BaseNode, TextNode
    from llama_index.retrievers.bm25 import BM25Retriever

    nodes: list[BaseNode] = [TextNode(id_=doc_id, text=text) for doc_id, text in documents.items()]
    retriever = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=TOP_K)
    return lambda query: {node.node.node_id: node.score or 0.0 for node in retriever.retrieve(query)}


def _ndcg10(qrels: Qrels, asked: Mapping[str, str], search: Callable[[str], dict[str, float]]) -> float:
    import ir_measures

    ranked = {query_id: search(query) for query_id, query in asked.items()}
    measure = ir_measures.nDCG @ TOP_K
    return float(ir_measures.calc_aggregate([measure], qrels, ranked)[measure])


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def _qrels(path: Path) -> Qrels:
    qrels: Qrels = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file, delimiter="\t"):
            qrels.setdefault(line["query-id"], {})[line["corpus-id"]] = int(line["score"])
    return qrels
