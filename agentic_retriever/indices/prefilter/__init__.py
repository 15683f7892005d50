"""The metadata prefilter: which nodes satisfy a filter, known before any vector or text is looked at."""

from agentic_retriever.indices.prefilter.index import CandidateSet, FilterPlan, MetadataIndex, PlanKind
from agentic_retriever.indices.prefilter.snapshot import NodeNumbers
from agentic_retriever.indices.prefilter.view import SOURCE_ALIASES, MetadataView

__all__ = [
    "SOURCE_ALIASES",
    "CandidateSet",
    "FilterPlan",
    "MetadataIndex",
    "MetadataView",
    "NodeNumbers",
    "PlanKind",
]
