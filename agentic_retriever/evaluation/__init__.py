"""Measuring on labelled questions: how well the router routes, and which strategy suits an index."""

from agentic_retriever.evaluation.bench import RoutingBenchmark, bench_routing
from agentic_retriever.evaluation.benchmark_result import Benchmark, TargetResult
from agentic_retriever.evaluation.contenders import stage_one_field, stage_two_field
from agentic_retriever.evaluation.datasets import Dataset, DatasetKind, LabelledQuery
from agentic_retriever.evaluation.harness import benchmark
from agentic_retriever.evaluation.loading import load_dataset
from agentic_retriever.evaluation.material import RoutingMaterial, RoutingOptions
from agentic_retriever.evaluation.measures import ndcg_by_query
from agentic_retriever.evaluation.options import BenchOptions
from agentic_retriever.evaluation.preparation import prepare
from agentic_retriever.evaluation.problems import Problem, ProblemKind, ProblemReport
from agentic_retriever.evaluation.reliability import draw_reliability, measure_reliability
from agentic_retriever.evaluation.results import ComplexityMeasures, StageOneMeasures, StageTwoMeasures
from agentic_retriever.evaluation.routing import (
    Contender,
    RoutedQuery,
    evaluate_complexity,
    evaluate_stage_two,
)
from agentic_retriever.evaluation.strategies import JudgedQuery, StrategyRun, run_strategies
from agentic_retriever.evaluation.training import TrainingOptions, TrainingResult, train_strategies

__all__ = [
    "BenchOptions",
    "Benchmark",
    "ComplexityMeasures",
    "Contender",
    "Dataset",
    "DatasetKind",
    "JudgedQuery",
    "LabelledQuery",
    "Problem",
    "ProblemKind",
    "ProblemReport",
    "RoutedQuery",
    "RoutingBenchmark",
    "RoutingMaterial",
    "RoutingOptions",
    "StageOneMeasures",
    "StageTwoMeasures",
    "StrategyRun",
    "TargetResult",
    "TrainingOptions",
    "TrainingResult",
    "bench_routing",
    "benchmark",
    "draw_reliability",
    "evaluate_complexity",
    "evaluate_stage_two",
    "load_dataset",
    "measure_reliability",
    "ndcg_by_query",
    "prepare",
    "run_strategies",
    "stage_one_field",
    "stage_two_field",
    "train_strategies",
]
