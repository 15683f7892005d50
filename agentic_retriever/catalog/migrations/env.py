"""Runs the migrations on the connection that a catalog gives, in its transaction."""

from alembic import context

from agentic_retriever.catalog.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, version_table=VERSION_TABLE
)
context.run_migrations()
