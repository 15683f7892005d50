"""The metadata prefilter: which nodes satisfy a filter, known before any vector or text is looked at."""

from agentic_retriever.indices.prefilter.index import (
    SOURCE_ALIASES,
    CandidateSet,
    FilterPlan,
    MetadataIndex,
    MetadataView,
    PlanKind,
)
from agentic_retriever.indices.prefilter.snapshot import NodeNumbers

__all__ = [
    "SOURCE_ALIASES",
    "CandidateSet",
    "FilterPlan",
    "MetadataIndex",
    "MetadataView",
    "NodeNumbers",
    "PlanKind",
]
