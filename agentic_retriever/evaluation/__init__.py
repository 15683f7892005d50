"""Measuring on labelled questions: how well the router routes, and which strategy suits an index."""

from agentic_retriever.evaluation.datasets import Dataset, load_dataset
from agentic_retriever.evaluation.harness import bench_routing, benchmark
from agentic_retriever.evaluation.measures import ndcg_by_query
from agentic_retriever.evaluation.results import Benchmark, BenchOptions
from agentic_retriever.evaluation.routing import RoutingBenchmark
from agentic_retriever.evaluation.training import TrainingOptions, TrainingResult, train_strategies
from agentic_retriever.show import Section

__all__ = [
    "BenchOptions", "Benchmark", "Dataset", "RoutingBenchmark", "Section", "TrainingOptions", "TrainingResult",
    "bench_routing", "benchmark", "load_dataset", "ndcg_by_query", "train_strategies",
]  # fmt: skip
