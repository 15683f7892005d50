"""Where the nodes of an index are kept: one contract, an engine in this process or a Qdrant server."""
