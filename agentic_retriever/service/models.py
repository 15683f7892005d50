"""What goes in and comes out of ``/v1``, as the OpenAPI document describes it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, get_args

from llama_index.core.schema import MetadataMode, NodeWithScore
from llama_index.core.vector_stores.types import MetadataFilters
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from typing_extensions import Self

from agentic_retriever import schema
from agentic_retriever.catalog.records import DocumentRecord
from agentic_retriever.service.settings import Caller

MAX_TEXT = 2_000  # characters of an excerpt
NO_NUL: Final = r"^[^\x00]*$"  # which PostgreSQL keeps in no text
Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NO_NUL)]
Identity = Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)]
Query = Annotated[str, StringConstraints(min_length=1, max_length=schema.MAX_QUERY_CHARS, pattern=NO_NUL)]
QueryId = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=NO_NUL)]
ConversationId = Annotated[str, StringConstraints(max_length=190, pattern=NO_NUL)]  # the key's id goes before it
DocumentId = Annotated[str, StringConstraints(min_length=1, max_length=36, pattern=NO_NUL)]
Number = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]


def _iso(given: object) -> object:
    """Refuse a number, which would be taken for seconds."""
    if isinstance(given, str) and "-" in given.lstrip("-"):
        return given
    raise ValueError("write it as in 2026-01-31T12:00:00Z")


Moment = Annotated[AwareDatetime, BeforeValidator(_iso)]


class In(BaseModel):
    """Base of what is sent: an unknown name is a mistake."""

    model_config = ConfigDict(extra="forbid")


class BudgetIn(In):
    """What a query may spend."""

    max_ms: Annotated[float, Field(gt=0, le=3_600_000, strict=True)] | None = None
    max_usd: Number | None = None
    max_llm_calls: Annotated[int, Field(ge=0, le=1_000, strict=True)] | None = None


class RouteIn(In):
    """A question, and what the caller fixes."""

    query: Query
    index: Name | Annotated[list[Name], Field(min_length=1, max_length=100)] | None = None
    strategy: Name | None = None
    budget: BudgetIn | None = None

    def wanted(self, caller: Caller) -> dict[str, Any]:
        """Return the arguments that the router takes besides the question."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name not in {"query", "stream"}}
        if "conversation_id" in given:
            given["conversation_id"] = caller.own(given["conversation_id"])
        return given | {"budget": self.budget and schema.Budget(**self.budget.model_dump())}


class TurnIn(In):
    """What was said before."""

    query: Query
    answer: str = ""
    understood_as: str = ""


class RetrieveIn(RouteIn):
    """Likewise, with what is to be found, and what was said before it: as it is sent, else as it is remembered."""

    filters: MetadataFilters | None = None
    top_k: Annotated[int, Field(ge=1, le=1_000, strict=True)] | None = None
    user_id: Identity = ""
    conversation_id: ConversationId = ""
    turns: Annotated[list[TurnIn], Field(max_length=100)] = []

    def wanted(self, caller: Caller) -> dict[str, Any]:
        return {**super().wanted(caller), "turns": [schema.Turn(**turn.model_dump()) for turn in self.turns]}


class QueryIn(RetrieveIn):
    """Likewise, with how it is to be answered."""

    force_cloud: Flag = False
    stream: Flag = False


class FoundNode(BaseModel):
    """A passage by its id."""

    node_id: str
    doc_id: str | None
    score: float | None


class NodeOut(FoundNode):
    """A passage that was found."""

    text: str
    metadata: dict[str, Any]

    @classmethod
    def of(cls, found: NodeWithScore) -> Self:
        node = found.node
        return cls(
            node_id=node.node_id,
            doc_id=node.ref_doc_id,
            score=found.score,
            text=node.get_content(MetadataMode.NONE)[:MAX_TEXT],
            metadata=node.metadata,
        )


class UsageOut(BaseModel):
    """Tokens and money."""

    llm_calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float
    tiers: dict[str, schema.TierUsage]


class AttemptOut(BaseModel):
    """A model that was asked."""

    tier: schema.Tier
    model: str
    failure: str | None
    seconds: float
    requests: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None


class RouteOut(BaseModel):
    """A decision; ``stages`` holds all that was weighed."""

    model_config = ConfigDict(extra="allow")

    format: int
    query: str
    understood_as: str
    index: str
    indexes: list[str]
    index_scores: dict[str, float]
    index_confidence: float
    strategy: str
    strategy_scores: dict[str, float]
    strategy_confidence: float
    complexity: schema.Complexity
    complexity_score: float
    complexity_reasons: list[str]
    stages: dict[str, Any]
    degraded: list[schema.Degradation]


class AnswerOut(BaseModel):
    """An answer with its citations, each checked, and how it came about."""

    query_id: str
    cached: bool
    timings_ms: dict[str, float]
    text: str
    citations: list[schema.Citation]
    confidence: schema.Confidence
    route: RouteOut
    nodes: list[FoundNode]
    tier: schema.Tier
    usage: UsageOut
    degraded: list[schema.Degradation]
    understood: list[str]
    tried: list[schema.Tried]
    checks: list[schema.SentenceCheck]
    attempts: list[AttemptOut]
    nodes_left_out: int


class RetrievalOut(BaseModel):
    """Passages in order, and how they were found."""

    nodes: list[NodeOut]
    strategy: str
    indexes: list[str]
    route: RouteOut
    degraded: list[schema.Degradation]
    understood: list[str]
    timings_ms: dict[str, float]
    tried: list[schema.Tried]
    usage: UsageOut

    @classmethod
    def of(cls, found: schema.Retrieval) -> Self:
        written = {"route": found.route.to_dict(), "usage": found.usage.to_dict()}
        known = {name: getattr(found, name) for name in cls.model_fields} | written
        return cls.model_validate({**known, "nodes": list(map(NodeOut.of, found.nodes))})


class ExplanationOut(BaseModel):
    """A decision in words."""

    decision: RouteOut
    cards: list[dict[str, Any]]
    text: list[str]


class IndexOut(BaseModel):
    """An index and what it holds."""

    name: str
    description: str
    nodes: int
    documents: int
    language: str
    version: int
    views: list[str]
    search: str = ""  # exact, by a graph, or by a server
    problem: str = ""  # why it cannot be opened


class IndexDetails(IndexOut):
    """An index with what a benchmark measured on it."""

    measured: dict[str, Any] | None


class DocumentOut(BaseModel):
    """A document as the catalog keeps it."""

    id: str
    index: str
    doc_id: str
    title: str
    document_type: str
    document_number: str
    filename: str
    file_hash: str
    status: str
    processing_progress: int
    total_pages: int
    total_chunks: int
    extraction_method: str
    tags: list[str]
    metadata: dict[str, Any]
    section_mappings: dict[str, str]
    version: int
    is_active: bool
    error_message: str
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, record: DocumentRecord) -> Self:
        return cls.model_validate(record, from_attributes=True)


Status = Literal["pending", "processing", "indexed", "failed", "inactive"]
Action = Literal["reprocess", "activate", "deactivate"]
STATUSES: Final[tuple[str, ...]] = get_args(Status)


class DocumentsQuery(In):
    """Which documents are wanted."""

    index: Name | None = None
    status: Status | None = None
    document_type: Name | None = None
    tag: Name | None = None
    search: Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)] | None = None
    is_active: bool | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    offset: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class DocumentsOut(BaseModel):
    """A page of documents."""

    documents: list[DocumentOut]
    total: int
    limit: int
    offset: int


class DocumentPatch(In):
    """What is to change of a document; what is left out stays."""

    title: Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=NO_NUL)] | None = None
    document_type: Annotated[str, StringConstraints(max_length=100, pattern=NO_NUL)] | None = None
    document_number: Annotated[str, StringConstraints(max_length=100, pattern=NO_NUL)] | None = None
    tags: Annotated[list[Name], Field(max_length=100)] | None = None
    metadata: Annotated[dict[str, Any], Field(max_length=100)] | None = None


class SourceOut(BaseModel):
    """The text that citations point into."""

    document_id: str
    text: str


class FeedbackIn(In):
    """What somebody thinks of an answer: a thumb, or 1 to 5."""

    query_id: QueryId
    thumb: Literal["up", "down"] | None = None
    rating: Annotated[int, Field(ge=1, le=5, strict=True)] | None = None
    comment: Annotated[str, StringConstraints(max_length=4_000, pattern=NO_NUL)] = ""
    user_id: Identity = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.thumb is None) == (self.rating is None):
            raise ValueError("send either thumb (up or down) or rating (1 to 5)")
        return self

    @property
    def stars(self) -> int:
        """The judgment from 1 to 5."""
        return self.rating or (5 if self.thumb == "up" else 1)


class ReplayOut(BaseModel):
    """A recorded question, routed as it would be now."""

    query: str
    understood_as: str
    route: RouteOut
    differences: list[schema.Difference]


class Cleared(BaseModel):
    """How many answers were dropped."""

    cleared_count: int


class Live(BaseModel):
    """The process answers."""

    status: str
    version: str


class Ready(BaseModel):
    """Whether questions should be sent here."""

    ready: bool
    indexes: int
    warm: bool
    problem: str
