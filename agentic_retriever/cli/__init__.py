"""The command line: ``agentic-retriever``."""

from agentic_retriever.cli.app import main

__all__ = ["main"]
