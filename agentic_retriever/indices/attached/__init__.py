"""Existing LlamaIndex indexes, query engines and retrievers as indexes of a router: in memory, in this process."""

from agentic_retriever.indices.attached.index import AttachedIndex, AttachedRetriever, attach_index
from agentic_retriever.indices.attached.sources import Recognised, recognise

__all__ = ["AttachedIndex", "AttachedRetriever", "Recognised", "attach_index", "recognise"]
