"""A Qdrant server beside the embedded store: ingestion, graphs, memory, and questions of several clients at once.

``QDRANT_URL=http://localhost:6333 python -m benchmarks server [--nodes N]``. ``QDRANT_STORAGE`` names the server's
folder where it is on this machine, so that its disk is measured, too. Clients are threads of one process. At the end
the vectors are quantized in several ways and asked again; then recall is against the server's own exact search.
With ``QDRANT_ALONE=1`` the server is measured by itself and with vectors as they are, which takes half of the time.

Vectors are made up, in clusters; ``QDRANT_VECTORS=FOLDER`` names a folder of ``NAME.npz`` with real ones of 384
dimensions (``doc_vectors``, ``query_vectors``), which are repeated with noise instead; texts are made up in both.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import DIMENSION, node_batches, questions, three_clause_filters, unit_vectors
from benchmarks.harness import BenchmarkSkippedError, Row, Unit, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores.types import VectorStoreQuery
    from qdrant_client import QdrantClient
    from qdrant_client.models import BinaryQuantization, ScalarQuantization

    from agentic_retriever.indices import QdrantEdgeVectorStore
    from agentic_retriever.stores.server import QdrantLink, QdrantServerVectorStore
    from benchmarks.harness import Options

NODES = 100_000
TOP_K = 10
RUNS = 320  # of each kind for each number of clients
CLIENTS = (1, 8, 32)
COLLECTION = "agentic-retriever-benchmark"
_SEED = 17
_ASKED = 1_000_003  # seed of the questions; with that of the centres each would lie between two clusters
_CLUSTER = 200  # nodes, on average
_SPREAD = 0.8  # of a cluster, where its centre has length 1
_NOISE = 0.25  # of a real vector that is repeated
_PEER = "embedded"
_COMPARED = 50  # questions whose results are held against exact search
_RESTS_S = 2.0  # a server that has had nothing to do for so long has built its graphs


@dataclass(frozen=True)
class Vectors:
    """Where the nodes' vectors lie, ``(N, DIMENSION)`` centres of length 1, and those that are asked for."""

    centres: npt.NDArray[np.float32]
    spread: float
    asked: npt.NDArray[np.float32]

    @classmethod
    def made_up(cls, nodes: int) -> Vectors:
        """Make clusters of ``_CLUSTER`` nodes, and questions in them."""
        centres = unit_vectors(max(1, nodes // _CLUSTER), seed=_SEED)
        return cls(centres, _SPREAD, _near(centres, _SPREAD, 2 * RUNS, _ASKED))

    @classmethod
    def read(cls, folder: Path) -> Vectors:
        """Read passages and questions of all files; each question is asked at most once."""
        paths = sorted(folder.glob("*.npz"))
        if not paths:
            raise BenchmarkSkippedError(f"no file NAME.npz in QDRANT_VECTORS={folder}")
        files = [np.load(path, allow_pickle=False) for path in paths]
        passages, asked = (
            np.concatenate([file[name] for file in files]).astype(np.float32)
            for name in ("doc_vectors", "query_vectors")
        )
        order = np.random.default_rng(_ASKED).permutation(len(asked))[: 2 * RUNS]
        return cls(passages, _NOISE, asked[order])

    def batches(self, count: int) -> Iterator[list[TextNode]]:
        """Yield nodes with payloads whose vectors lie around the centres."""
        for batch in node_batches(count, seed=_SEED):
            vectors = _near(self.centres, self.spread, len(batch), int(batch[0].node_id.replace("-", ""), 16))
            for node, vector in zip(batch, vectors, strict=True):
                node.embedding = vector.tolist()
            yield batch


def run(options: Options) -> list[Row]:
    """Measure the server that QDRANT_URL names; any number of nodes may be asked for.

    Raises:
        BenchmarkSkippedError: If none is named, or it does not answer.
    """
    from agentic_retriever.config import Secret
    from agentic_retriever.errors import StoreError
    from agentic_retriever.indices import QdrantEdgeVectorStore
    from agentic_retriever.stores.server import QdrantLink, QdrantServerVectorStore

    if not os.environ.get("QDRANT_URL"):
        raise BenchmarkSkippedError("no Qdrant server; set QDRANT_URL to one that may be filled")
    link = QdrantLink(os.environ["QDRANT_URL"], api_key=Secret(os.environ.get("QDRANT_API_KEY", "")), timeout_s=60)
    try:
        version = link.check(5)
    except StoreError as err:
        raise BenchmarkSkippedError(str(err)) from err
    link.call("remove a collection", lambda client: client.delete_collection(COLLECTION))
    store = QdrantServerVectorStore(link, COLLECTION, keywords=True)
    count = options.nodes or NODES
    real = os.environ.get("QDRANT_VECTORS")
    vectors = Vectors.read(Path(real)) if real else Vectors.made_up(count)
    size = f"{count:,} x {DIMENSION}, {'real vectors with noise' if real else 'clusters'}, Qdrant {version}"
    alone = bool(os.environ.get("QDRANT_ALONE"))
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            nullcontext() if alone else QdrantEdgeVectorStore(folder) as embedded,
        ):
            rows, texts = _filled(link, store, embedded, vectors.batches(count), size)
            rows += _asked(store, embedded, Path(folder), texts, vectors, size)
            asked = vectors.asked[RUNS:].tolist()
            return rows + _quantized(link, store.dense_vector_name, asked, size, as_they_are=alone)
    finally:
        link.call("remove a collection", lambda client: client.delete_collection(COLLECTION))
        link.close()


def _filled(
    link: QdrantLink, store: QdrantServerVectorStore, embedded: QdrantEdgeVectorStore | None,
    batches: Iterator[list[TextNode]], size: str,
) -> tuple[list[Row], Mapping[str, str]]:  # fmt: skip
    """Give both the same nodes, and let the server build its graph; return the nodes' texts, too."""
    from agentic_retriever.stores.points import searched_text

    stores = [store] if embedded is None else [store, embedded]
    taken, texts = [0.0 for _ in stores], dict[str, str]()
    for batch in batches:
        texts.update((node.node_id, searched_text(node)) for node in batch)
        for i, made in enumerate(stores):
            start = time.perf_counter()
            made.add(batch)
            taken[i] += time.perf_counter() - start
        if len(texts) == len(batch):
            _let_build(link, store.dense_vector_name, False)
    before, count = _space(), len(texts)
    _let_build(link, store.dense_vector_name, True)
    built_s, graph = _built(link)
    told = ", embedded ".join(f"{each:.1f} s" for each in taken)
    say(f"  {count:,} nodes: server {told}; then {built_s:.1f} s until the server rests")
    return [
        Row(
            name="server: nodes added", unit=Unit.NODES_PER_S, ours=count / taken[0], peer=_PEER if taken[1:] else "",
            peer_value=count / taken[1] if taken[1:] else None,
            note=f"{size}; with sparse vectors and payload indexes; {before}",
        ),
        Row(
            name="server: graph built after that", ours=built_s * 1000,
            note=f"{size}; {graph}; {_space()}",
        ),
    ], texts  # fmt: skip


def _asked(
    store: QdrantServerVectorStore, embedded: QdrantEdgeVectorStore | None, folder: Path, texts: Mapping[str, str],
    vectors: Vectors, size: str,
) -> list[Row]:  # fmt: skip
    """Build the embedded graph, and ask both; each kind with other questions first, whose times are told apart."""
    sides, rows = {"server": _searches(store)}, list[Row]()
    asked, exact = _inputs(list(texts.values()), vectors), dict[str, list[set[str]]]()
    if embedded is not None:
        sides[_PEER] = by_embedded = _embedded_searches(embedded, store, texts)
        exact = {kind: [by_embedded[kind](one) for one in inputs[-_COMPARED:]] for kind, inputs in asked.items()}
        rows += _embedded_graph(embedded, folder, size)
    for kind, inputs in asked.items():
        calls, note = {name: calls[kind] for name, calls in sides.items()}, size
        for name, call in calls.items():
            note += f"; {name}: p50 of the first questions {_timed(call, inputs[:RUNS], 1)[0][0]:.1f} ms"
            if exact:
                note += f", found {_shared([call(one) for one in inputs[-_COMPARED:]], exact[kind])} of the exact ones"
        for clients in CLIENTS:
            rows += [_row(kind, clients, calls["server"], calls.get(_PEER), inputs[RUNS:], note)]
            say(f"  {rows[-1].name}: {rows[-1].ours} {rows[-1].note}; embedded {rows[-1].peer_value}")
    return rows


def _let_build(link: QdrantLink, name: str, allowed: bool) -> None:
    """Let the server build graphs or not: while nodes come in it would build and join many, and take their time."""
    from qdrant_client import models as api

    graph = api.HnswConfigDiff(m=16 if allowed else 0)  # 16 is the server's default
    link.call("set the graph", lambda client: client.update_collection(
        COLLECTION, vectors_config={name: api.VectorParamsDiff(hnsw_config=graph)}))  # fmt: skip


def _embedded_graph(store: QdrantEdgeVectorStore, folder: Path, size: str) -> list[Row]:
    """Build the embedded store's graph, as documents that are added do where there are nodes enough for one."""
    before, start = _spent(), time.perf_counter()
    nodes = store.build_graph()
    built_s, used = time.perf_counter() - start, _spent() - before
    note = f"{size}; of {nodes:,} nodes, {used:.0f} s of the processor; disk {_disk(folder):,.0f} MB"
    say(f"  embedded: graph in {built_s:.1f} s {note}")
    return [Row(name="server: graph built by the embedded store", ours=built_s * 1000, note=note)] if nodes else []


def _spent() -> float:
    """Return the seconds of the processor that this process and those it has waited for have used."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _quantized(link: QdrantLink, name: str, asked: Sequence[list[float]], size: str, *, as_they_are: bool) -> list[Row]:
    """Search by one client with vectors as they are, as 8-bit numbers and as bits, with and without rescoring."""
    from qdrant_client import models as api

    from agentic_retriever.stores.server import GRAPH_EFFORT

    def found(vector: list[float], params: api.SearchParams) -> set[str]:
        answer = link.call("search", lambda client: client.query_points(
            COLLECTION, vector, using=name, limit=TOP_K, search_params=params, with_payload=False))  # fmt: skip
        return {str(point.id) for point in answer.points}

    int8 = api.ScalarQuantization(scalar=api.ScalarQuantizationConfig(type=api.ScalarType.INT8, always_ram=True))
    bits = api.BinaryQuantization(binary=api.BinaryQuantizationConfig(always_ram=True))
    exact = [found(vector, api.SearchParams(exact=True)) for vector in asked[:_COMPARED]]
    rows = list[Row]()
    kinds = ((None, "float32", (None,)), (int8, "int8", (None, 2.0)), (bits, "binary", (None, 2.0, 4.0, 8.0)))
    for made, kind, oversampled in kinds[:1] if as_they_are else kinds:
        built_s, graph = 0.0, "as they are"
        if made is not None:
            link.call("quantize", partial(_quantize, quantization=made))
            built_s, graph = _built(link)
        for times in oversampled:
            rescored = api.QuantizationSearchParams(rescore=times is not None, oversampling=times)
            params = api.SearchParams(hnsw_ef=GRAPH_EFFORT, quantization=rescored)
            told = f"{kind}, {times:g} times the candidates rescored" if times else kind
            kept = _shared([found(vector, params) for vector in asked[:_COMPARED]], exact)
            kept += " of what exact search finds"
            taken, pace = _timed(partial(found, params=params), asked, 1)
            note = f"{size}; {pace}; {kept}; quantized in {built_s:.0f} s, {graph}; {_space()}"
            rows.append(Row(name=f"server: {told}", ours=taken[0], ours_p95=taken[1], note=note))
            say(f"  {rows[-1].name}: {rows[-1].ours} {note}")
    return rows


def _quantize(client: QdrantClient, *, quantization: ScalarQuantization | BinaryQuantization) -> bool:
    """Have the graph built again on what is searched."""
    return client.update_collection(COLLECTION, quantization_config=quantization)


def _near(centres: npt.NDArray[np.float32], spread: float, count: int, seed: int) -> npt.NDArray[np.float32]:
    chosen = np.random.default_rng((_SEED, seed)).integers(len(centres), size=count)
    vectors = centres[chosen] + spread * unit_vectors(count, seed=_SEED + seed)
    near: npt.NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return near


def _inputs(texts: Sequence[str], vectors: Vectors) -> Mapping[str, Sequence[tuple[VectorStoreQuery, str]]]:
    """Return what is asked: of each kind ``RUNS`` to begin with, and as many others that are measured."""
    from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery

    count = len(vectors.asked)
    asked, filters = questions(list(texts), count, seed=_SEED, words=6), three_clause_filters(count, seed=_SEED)
    wide = [MetadataFilters(filters=[some.filters[-1]]) for some in filters]
    plain, filtered, barely = (
        [
            (VectorStoreQuery(query_embedding=vector, similarity_top_k=TOP_K, filters=some), words)
            for vector, some, words in zip(vectors.asked.tolist(), filtering, asked, strict=True)
        ]
        for filtering in ([None] * count, filters, wide)
    )
    return {"vector": plain, "filtered": filtered, "filtered to two fifths": barely, "words": plain, "hybrid": plain}


def _by_vector(
    store: QdrantServerVectorStore | QdrantEdgeVectorStore,
) -> Mapping[str, Callable[[tuple[VectorStoreQuery, str]], set[str]]]:
    def found(asked: tuple[VectorStoreQuery, str]) -> set[str]:
        return set(store.query(asked[0]).ids or ())

    return dict.fromkeys(("vector", "filtered", "filtered to two fifths"), found)


def _searches(store: QdrantServerVectorStore) -> Mapping[str, Callable[[tuple[VectorStoreQuery, str]], set[str]]]:
    words = store.words
    assert words is not None

    def both(asked: tuple[VectorStoreQuery, str]) -> set[str]:
        vector = asked[0].query_embedding or []
        return {hit.node.node_id for side in words.search_both(vector, asked[1], TOP_K) for hit in side}

    return {
        **_by_vector(store),
        "words": lambda asked: {hit.node.node_id for hit in words.search_words(asked[1], TOP_K)},
        "hybrid": both,
    }


def _embedded_searches(
    store: QdrantEdgeVectorStore, other: QdrantServerVectorStore, texts: Mapping[str, str]
) -> Mapping[str, Callable[[tuple[VectorStoreQuery, str]], set[str]]]:
    from agentic_retriever.indices import KeywordIndex

    sparse = other.words and other.words.sparse
    assert sparse
    index = KeywordIndex.build(texts.items(), tokenizer=sparse.tokenizer, version=1)

    def by_words(asked: tuple[VectorStoreQuery, str]) -> set[str]:
        found = [node_id for node_id, _ in index.search(asked[1], TOP_K)]
        return {node.node_id for node in store.get_nodes(found)}

    vectors = _by_vector(store)
    return {**vectors, "words": by_words, "hybrid": lambda asked: vectors["vector"](asked) | by_words(asked)}


def _row(
    kind: str,
    clients: int,
    ours: Callable[[Any], object],
    peer: Callable[[Any], object] | None,
    inputs: Sequence[object],
    note: str,
) -> Row:
    server, told = _timed(ours, inputs, clients)
    row = Row(name=f"server: {kind}, {clients} clients", ours=server[0], ours_p95=server[1], note=f"{told}; {note}")
    if peer is None:
        return row
    embedded, peer_told = _timed(peer, inputs, clients)
    return replace(row, peer=_PEER, peer_value=embedded[0], note=f"{told}; embedded {peer_told}; {note}")


def _timed(call: Callable[[Any], object], inputs: Sequence[object], clients: int) -> tuple[list[float], str]:
    """Return the median, p95 and p99 in milliseconds, and the last with the rate as text."""

    def one(item: object) -> float:
        start = time.perf_counter()
        call(item)
        return (time.perf_counter() - start) * 1000

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(one, islice(cycle(inputs), 2 * clients)))
        start = time.perf_counter()
        taken = list(pool.map(one, inputs))
        rate = len(inputs) / (time.perf_counter() - start)
    found = np.percentile(taken, (50, 95, 99)).tolist()
    return found, f"p95 {found[1]:.1f}, p99 {found[2]:.1f} ms, {rate:.0f}/s"


def _shared(ours: Sequence[set[str]], exact: Sequence[set[str]]) -> str:
    wanted = sum(map(len, exact))
    kept = sum(len(mine & theirs) for mine, theirs in zip(ours, exact, strict=True))
    return f"{kept / max(1, wanted):.3f}"


def _built(link: QdrantLink) -> tuple[float, str]:
    """Wait until the server rests; return the seconds until then, and what it has indexed, sparse vectors among it."""
    start = rested = time.perf_counter()
    while True:
        info = link.call("read a collection", lambda client: client.get_collection(COLLECTION))
        now = time.perf_counter()
        if info.status.value != "green":
            rested = now
        elif now - rested > _RESTS_S:
            return rested - start, f"{info.indexed_vectors_count:,} vectors indexed, {info.segments_count} segments"
        time.sleep(0.1)


def _space() -> str:
    """Tell how much memory the server has in use, and disk where its folder is known."""
    import httpx

    url, key = os.environ["QDRANT_URL"].split(",")[0], os.environ.get("QDRANT_API_KEY", "")
    told = re.search(r"memory_resident_bytes (\d+)", httpx.get(f"{url}/metrics", headers={"api-key": key}).text)
    memory = f"server resident {int(told[1]) / 2**20:,.0f} MB" if told else "memory not told"
    folder = os.environ.get("QDRANT_STORAGE")
    if folder is None:
        return f"{memory}, disk not measured"
    return f"{memory}, disk {_disk(Path(folder, 'collections', COLLECTION)):,.0f} MB"


def _disk(folder: Path) -> float:
    used = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a server goes on tidying up
                used += Path(place, name).stat().st_blocks * 512
    return used / 2**20
