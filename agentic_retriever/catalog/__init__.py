"""The catalog: indexes, their documents and nodes, and the history of queries, in one database.

It is SQLite in the data directory, or PostgreSQL, which any number of machines may share. Nothing here loads
SQLAlchemy before the catalog is used.
"""
