"""Measuring on labelled questions: how well the router routes, and which strategy suits an index."""

from agentic_retriever.evaluation.datasets import (
    Dataset,
    DatasetKind,
    LabelledQuery,
    Problem,
    ProblemKind,
    ProblemReport,
    load_dataset,
)
from agentic_retriever.evaluation.harness import benchmark
from agentic_retriever.evaluation.material import RoutedQuery, RoutingMaterial, RoutingOptions, prepare
from agentic_retriever.evaluation.measures import measure_reliability, ndcg_by_query
from agentic_retriever.evaluation.results import Benchmark, BenchOptions, TargetResult, draw_reliability
from agentic_retriever.evaluation.routing import RoutingBenchmark, bench_routing
from agentic_retriever.evaluation.training import TrainingOptions, TrainingResult, train_strategies
from agentic_retriever.show import Section

__all__ = [
    "BenchOptions",
    "Benchmark",
    "Dataset",
    "DatasetKind",
    "LabelledQuery",
    "Problem",
    "ProblemKind",
    "ProblemReport",
    "RoutedQuery",
    "RoutingBenchmark",
    "RoutingMaterial",
    "RoutingOptions",
    "Section",
    "TargetResult",
    "TrainingOptions",
    "TrainingResult",
    "bench_routing",
    "benchmark",
    "draw_reliability",
    "load_dataset",
    "measure_reliability",
    "ndcg_by_query",
    "prepare",
    "train_strategies",
]
