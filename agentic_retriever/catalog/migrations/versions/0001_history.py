"""The history of queries, as it was before there was a catalog."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_TEXTS = "query_id complexity index_mode strategy strategy_mode tier confidence_level error"
_FIGURES = (
    "complexity_score index_confidence strategy_confidence confidence cloud_only_usd "
    "total_ms routing_ms embedding_ms retrieval_ms rerank_ms synthesis_ms llm_ms"
)


def upgrade() -> None:
    op.create_table(
        "agentic_retriever_meta",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "agentic_retriever_queries",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("entry_id", sa.String(32), nullable=False, unique=True),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False, index=True),
        sa.Column("query_text", sa.Text),
        sa.Column("query_hash", sa.String(64)),
        sa.Column("index_name", sa.Text, nullable=False),
        sa.Column("index_names", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _TEXTS.split()),
        *(sa.Column(name, sa.Double) for name in _FIGURES.split()),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("llm_calls", "cloud_calls", "prompt_tokens", "completion_tokens", "citations")
        ),
        sa.Column("usd", sa.Double, nullable=False),
        sa.Column("cached", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.Text) for name in ("degraded_steps", "degraded", "spent", "other_ms")),
    )
