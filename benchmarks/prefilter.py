"""The metadata prefilter alone, beside other ways to find the nodes that satisfy three clauses."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from benchmarks.data import DIMENSION, three_clause_filters
from benchmarks.harness import Row, Timing, Unit, measure, say, seconds, timed_row
from benchmarks.prefilter_peers import LlamaIndexInMemory, NumpyScan, PythonSets, QdrantEdgeCount, QdrantLocalMode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.indices.prefilter.index import MetadataIndex
    from benchmarks.harness import Options
    from benchmarks.prefilter_peers import Items, Peer

NODES = 50_000
MANY_NODES = 1_000_000
LLAMA_INDEX_NODES = 20_000
RUNS = 300
PEER_RUNS = 30
SLOW_RUNS = 8  # each takes a good part of a second
BATCH = 64  # what indexing writes at a time
TARGET_MS = {NODES: 0.1, MANY_NODES: 0.3}
TARGET_BUILD_MS = 5_000
TARGET_PERCENT = 10.0
_BATCHES = 20
_SEED = 31


def run(options: Options) -> list[Row]:
    """Measure filters, building, memory, insertion and deletion."""
    filters = three_clause_filters(RUNS, seed=_SEED)
    count, many = options.sized(NODES), options.sized(MANY_NODES)
    items = make_items(count)
    rows = _beside_others(items, filters)
    rows += _beside_llama_index(items[: options.sized(LLAMA_INDEX_NODES)], filters)
    rows += _changes(_built(items), items)
    del items
    say(f"  {many:,} nodes ...")
    items = make_items(many)
    rows += _at_scale(items, filters)
    rows += _memory(many)
    return rows


def make_items(count: int) -> list[tuple[str, Mapping[str, Any]]]:
    """Return ids (UUIDs) with metadata: 20 categories, 2 states, 25 years, 3 of 50 tags, and a price of its own."""
    rng = np.random.default_rng(_SEED)
    categories = [f"category-{i:02d}" for i in range(20)]
    tags = [f"tag-{i:02d}" for i in range(50)]
    columns = zip(
        rng.integers(20, size=count).tolist(),
        rng.integers(2, size=count).tolist(),
        rng.integers(2000, 2025, size=count).tolist(),
        rng.integers(50, size=(count, 3)).tolist(),
        rng.gamma(2.0, 50.0, size=count).tolist(),
        strict=True,
    )
    return [
        (
            str(UUID(int=row + 1)),
            {
                "category": categories[category],
                "status": ("published", "draft")[state],
                "year": year,
                "tags": [tags[tag] for tag in chosen],
                "price": price,
            },
        )
        for row, (category, state, year, chosen, price) in enumerate(columns)
    ]


def _built(items: Items) -> MetadataIndex:
    from agentic_retriever.indices.prefilter.index import MetadataIndex

    return MetadataIndex.build(items, version=1)


def _beside_others(items: Items, filters: Sequence[MetadataFilters]) -> list[Row]:
    index = _built(items)
    ours = measure(index.candidates, filters, warm_up=20)
    name = f"prefilter: 3 clauses, {len(items):,} nodes"
    rows = [
        _compare(name, index, ours, peer, filters, runs)
        for peer, runs in ((PythonSets(items), PEER_RUNS), (NumpyScan(items), PEER_RUNS))
    ]
    with QdrantEdgeCount(items) as edge:
        rows.append(_compare(name, index, ours, edge, filters, PEER_RUNS))
    rows.append(_compare(name, index, ours, QdrantLocalMode(items), filters, SLOW_RUNS))
    return rows


def _beside_llama_index(items: Items, filters: Sequence[MetadataFilters]) -> list[Row]:
    index = _built(items)
    ours = measure(index.candidates, filters, warm_up=20)
    name = f"prefilter: 3 clauses, {len(items):,} nodes"
    return [_compare(name, index, ours, LlamaIndexInMemory(items), filters, SLOW_RUNS)]


def _at_scale(items: Items, filters: Sequence[MetadataFilters]) -> list[Row]:
    built_s = seconds(lambda: _built(items))
    index = _built(items)
    ours = measure(index.candidates, filters, warm_up=20)
    name = f"prefilter: 3 clauses, {len(items):,} nodes"
    rows = [
        _compare(name, index, ours, NumpyScan(items), filters, PEER_RUNS),
        _compare(name, index, ours, PythonSets(items), filters, SLOW_RUNS),
        _price_range(index, items),
        Row(
            name=f"prefilter: build, {len(items):,} nodes", ours=built_s * 1000, target=TARGET_BUILD_MS,
            note="one run; 5 fields, one of them a list and one with a value of its own for each node",
        ),
    ]  # fmt: skip
    rows += _changes(index, items)
    return rows


def _compare(
    name: str, index: MetadataIndex, ours: Timing, peer: Peer, filters: Sequence[MetadataFilters], runs: int
) -> Row:
    timing = measure(peer, filters[:runs], warm_up=1)
    same = sum(len(index.candidates(one)) == peer(one) for one in filters[:SLOW_RUNS])
    note = f"IN of 3, EQ, range; as many nodes: {same} of {min(SLOW_RUNS, len(filters))} filters"
    return timed_row(
        name, ours, peer=peer.name, peer_timing=timing, target_ms=TARGET_MS.get(len(index)), note=note
    )  # fmt: skip


def _price_range(index: MetadataIndex, items: Items) -> Row:
    from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

    prices = np.fromiter((metadata["price"] for _, metadata in items), dtype=np.float64)
    bounds = np.quantile(prices, np.random.default_rng(_SEED).random(RUNS)).tolist()
    ranges = [
        MetadataFilters(filters=[MetadataFilter(key="price", operator=FilterOperator.GTE, value=bound)])
        for bound in bounds
    ]
    peer = measure(lambda bound: np.flatnonzero(prices >= bound), bounds[:PEER_RUNS], warm_up=1)
    same = all(
        len(index.candidates(one)) == (prices >= bound).sum()
        for one, bound in zip(ranges[:SLOW_RUNS], bounds, strict=False)
    )
    return timed_row(
        f"prefilter: range of any width, {len(items):,} different values",
        measure(index.candidates, ranges, warm_up=20), peer=NumpyScan.name, peer_timing=peer,
        target_ms=TARGET_MS.get(len(index)),
        note=f"B+-tree; the same nodes: {same}",
    )  # fmt: skip


def _changes(index: MetadataIndex, items: Items) -> list[Row]:
    added = [
        [(f"new-{batch}-{i}", items[(batch * BATCH + i) * 7 % len(items)][1]) for i in range(BATCH)]
        for batch in range(_BATCHES)
    ]
    gone = [[node_id for node_id, _ in batch] for batch in added]
    note = f"{BATCH} nodes a change, median of {_BATCHES}, into {len(index):,} with 5 fields"
    insert, delete = measure(index.update, added), measure(lambda ids: index.update((), ids), gone)
    return [
        Row(
            name=f"prefilter: {what}, {len(items):,} nodes", unit=Unit.NODES_PER_S,
            ours=BATCH * 1000 / timing.p50_ms, note=note,
        )
        for what, timing in (("insert", insert), ("delete", delete))
    ]  # fmt: skip


def _memory(count: int) -> list[Row]:
    """Ask a process of its own, in which nothing else comes and goes."""
    if not Path("/proc/self/statm").exists():
        return []
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.prefilter", str(count)], capture_output=True, text=True, check=True
    )
    taken = int(json.loads(done.stdout))
    return [
        Row(
            name=f"prefilter: memory beside float32 vectors, {count:,} nodes", unit=Unit.PERCENT,
            ours=100 * taken / (count * DIMENSION * 4),
            target=TARGET_PERCENT if count == MANY_NODES else None,
            note=f"{taken / 1e6:,.0f} MB of the process, node ids included, beside {DIMENSION} dimensions",
        )
    ]  # fmt: skip


def _resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


def _print_memory(count: int) -> None:
    items = make_items(count)
    _built(items[:1_000])  # so that what is imported and set up on first use is not counted
    before = _resident_bytes()
    index = _built(items)
    print(json.dumps(_resident_bytes() - before))
    del index


if __name__ == "__main__":
    _print_memory(int(sys.argv[1]))
