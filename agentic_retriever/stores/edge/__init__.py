"""Qdrant Edge: the engine in this process."""
