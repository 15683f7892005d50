"""What a follow-up meant in its conversation."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("agentic_retriever_queries", sa.Column("understood_as", sa.Text, nullable=False, server_default=""))
