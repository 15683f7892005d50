"""Keys of the service."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "agentic_retriever_api_keys",
        sa.Column("id", sa.String(8), primary_key=True),
        sa.Column("name", sa.Text, nullable=False, server_default=""),
        sa.Column("role", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
    )
