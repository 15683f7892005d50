"""The metadata prefilter: which nodes satisfy a filter, known before any vector or text is looked at."""

from agentic_retriever.indices.prefilter.index import (
    MAX_CANDIDATES,
    MIN_NODES,
    SOURCE_ALIASES,
    CandidateSet,
    FilterPlan,
    MetadataIndex,
    MetadataView,
    PlanKind,
    VectorRows,
    VectorRowsView,
)

__all__ = [
    "MAX_CANDIDATES",
    "MIN_NODES",
    "SOURCE_ALIASES",
    "CandidateSet",
    "FilterPlan",
    "MetadataIndex",
    "MetadataView",
    "PlanKind",
    "VectorRows",
    "VectorRowsView",
]
