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
from agentic_retriever.evaluation.measures import ndcg_by_query
from agentic_retriever.evaluation.options import BenchOptions
from agentic_retriever.evaluation.reliability import draw_reliability, measure_reliability
from agentic_retriever.evaluation.results import (
    Benchmark,
    ComplexityMeasures,
    StageOneMeasures,
    StageTwoMeasures,
    TargetResult,
)
from agentic_retriever.evaluation.routing import (
    Contender,
    RoutedQuery,
    RoutingBenchmark,
    RoutingMaterial,
    RoutingOptions,
    bench_routing,
    evaluate_complexity,
    evaluate_stage_two,
    prepare,
    stage_one_field,
    stage_two_field,
)
from agentic_retriever.evaluation.training import (
    JudgedQuery,
    StrategyRun,
    TrainingOptions,
    TrainingResult,
    run_strategies,
    train_strategies,
)

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
