"""The life of documents: uploaded, processed by workers, corrected, switched off and on, removed."""

from agentic_retriever.lifecycle.documents import Documents
from agentic_retriever.lifecycle.worker import DocumentWorker

__all__ = ["DocumentWorker", "Documents"]
