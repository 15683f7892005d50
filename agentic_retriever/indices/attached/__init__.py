"""Existing LlamaIndex indexes, query engines and retrievers as indexes of a router: in memory, in this process."""
