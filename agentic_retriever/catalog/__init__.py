"""The catalog: indexes, documents, nodes and history in one database; SQLAlchemy is loaded when it is first used."""
