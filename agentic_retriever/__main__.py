"""``python -m agentic_retriever``."""

from agentic_retriever.cli import main

if __name__ == "__main__":
    main()
