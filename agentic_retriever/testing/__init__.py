"""For tests of code that uses or extends agentic-retriever: stand-ins for models, and contract suites to inherit."""

from agentic_retriever.testing.fakes import FakeEmbedding, FakeLLM

__all__ = ["FakeEmbedding", "FakeLLM"]
