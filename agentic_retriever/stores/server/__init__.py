"""A Qdrant server or cluster."""
