"""Existing LlamaIndex indexes, query engines and retrievers as indexes of a router: in memory, in this process."""

from agentic_retriever.indices.attached.asked import AttachedRetriever
from agentic_retriever.indices.attached.index import AttachedIndex, attach_index
from agentic_retriever.indices.attached.recognition import Recognised, recognise
from agentic_retriever.indices.attached.snapshot import Sampler

__all__ = ["AttachedIndex", "AttachedRetriever", "Recognised", "Sampler", "attach_index", "recognise"]
