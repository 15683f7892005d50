"""The settings of a router, each with its default, unit and range; the only module that reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_retriever.config.environment import read_dotenv, settings_in
from agentic_retriever.config.values import Secret, SecretUrl, checked, plain, setting, spec_of
from agentic_retriever.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """All settings of a router; frozen, checked when made, safe to print.

    Raises:
        ConfigError: If a value has the wrong type, is out of range, or does not fit another one.
    """

    data_dir: Path = setting(
        Path("agentic-retriever-data"), "folder that holds the indexes; open only folders you trust"
    )

    embedding_model: str = setting(
        "auto",
        "auto, local, or ollama:MODEL; auto keeps what the indexes have, else a reachable Ollama, else local",
        alias="EMBEDDING_MODEL",
    )
    embedding_batch_size: int = setting(
        16, "texts per call to the embedding model", unit="texts", minimum=1, maximum=2048
    )
    embedding_timeout_s: float = setting(
        120.0, "total time for one call to the embedding model", unit="seconds", minimum=0.1
    )
    embedding_cache_size: int = setting(
        2048, "vectors kept in memory; 0 turns the memory cache off", unit="vectors", minimum=0
    )
    embedding_cache_ttl_s: float = setting(86_400.0, "how long a vector stays in memory", unit="seconds", minimum=0)
    ollama_base_url: str = setting("http://localhost:11434", "where Ollama listens", alias="OLLAMA_BASE_URL")

    llm: str = setting(
        "none",
        "model that writes answers: none, ollama, ollama:MODEL, openrouter or openrouter:MODEL; none in all tiers "
        "answers by extraction",
    )
    llm_cloud: str = setting(
        "none", "model for complex questions and long contexts, and when llm fails; values as for llm"
    )
    llm_small: str = setting("none", "model for when llm and llm_cloud fail; values as for llm")
    llm_timeout_s: float = setting(60.0, "total time for one answer, all tiers together", unit="seconds", minimum=0.1)
    llm_context_chars: int = setting(8_000, "most source text in one prompt", unit="characters", minimum=500)
    llm_long_context_chars: int = setting(
        8_000, "with more source text the cloud tier is asked first", unit="characters", minimum=0
    )
    llm_retries: int = setting(
        2, "requests that one call may send after a failed one, per tier", unit="requests", minimum=0, maximum=2
    )
    llm_workers: int = setting(
        8, "calls to one model under way at once; four times as many may wait", unit="calls", minimum=1, maximum=256
    )
    breaker_failures: int = setting(
        3, "failures in a row after which a model is left alone", unit="failures", minimum=1, maximum=100
    )
    breaker_cooldown_s: float = setting(
        30.0, "how long it is left alone before it is tried again", unit="seconds", minimum=0.1
    )
    openrouter_base_url: str = setting("https://openrouter.ai/api/v1", "where OpenRouter listens")
    prices_file: str = setting("", "JSON file with prices of models that go before those of the package")
    openrouter_api_key: Secret = setting(Secret(""), "key for OpenRouter; never shown", alias="OPENROUTER_API_KEY")

    chunk_size: int = setting(512, "largest chunk", unit="tokens", minimum=32, maximum=8192)
    chunk_overlap: int = setting(50, "text shared by neighbouring chunks", unit="tokens", minimum=0)
    leaf_size: int = setting(128, "largest leaf of the hierarchy", unit="tokens", minimum=16)
    max_file_mb: float = setting(50.0, "larger files are skipped and reported", unit="megabytes", minimum=0.001)

    top_k: int = setting(8, "nodes retrieved for a question", unit="nodes", minimum=1, maximum=10_000)
    max_top_k: int = setting(10_000, "largest top_k a caller may ask for", unit="nodes", minimum=1)
    max_query_chars: int = setting(20_000, "longest question allowed", unit="characters", minimum=1)
    deadline_s: float = setting(120.0, "total time for one query", unit="seconds", minimum=0.05)
    workers: int = setting(
        8, "threads that serve the async methods and parallel searches", unit="threads", minimum=1, maximum=256
    )

    classifier: str = setting(
        "auto",
        "how the index is chosen; auto: by its content, and by a model where that is not clear and there is one",
        choices=("auto", "profile", "embedding", "llm"),
    )
    selector: str = setting(
        "auto",
        "how the strategy is chosen; auto: by signals, and by a model where they are not clear and there is one",
        choices=("auto", "heuristic", "llm", "llm_word", "round_robin"),
    )
    escalation_margin: float = setting(
        0.2, "ask a model about the index when the first leads by less; classifier auto", minimum=0, maximum=1
    )
    escalation_confidence: float = setting(
        0.35, "ask a model about the strategy when the first has less; selector auto", minimum=0, maximum=1
    )
    domain_terms: str = setting(
        "", "terms of the field with aliases, which speak for hybrid, such as: homologation | type approval; ABS"
    )
    index_margin: float = setting(
        0.4,
        "search two indexes side by side when their probabilities differ by less; 0 always takes one",
        minimum=0,
        maximum=1,
    )

    abstain_below: float = setting(
        0.15,
        "a question counts as out of scope when it is about the nearest index with less probability; 0 never",
        minimum=0,
        maximum=1,
    )
    support_below: float = setting(
        0.3,
        "nothing is answered from passages that hold an answer with less probability; 0 always believes them",
        minimum=0,
        maximum=1,
    )
    on_abstain: str = setting(
        "decline",
        "what a question gets that seems to be about nothing in the indexes: a word to say so (decline), an answer "
        "from the nearest index (answer), all of them (all) or the default one (default), or an error (raise)",
        choices=("decline", "answer", "all", "default", "raise"),
    )
    default_index: str = setting("", "index that takes questions about nothing in the indexes; on_abstain = default")
    retry_below: float = setting(
        0.5,
        "try the next strategy, at most twice, when what was found fits the question less than this; 0 never does",
        minimum=0,
        maximum=1,
    )

    fusion: str = setting(
        "calibrated",
        "how hybrid merges dense and BM25; calibrated weighs them by question, or as trained on the index",
        choices=("calibrated", "weighted", "rrf", "borda"),
    )
    hybrid_alpha: float = setting(
        0.7,
        "weight of the dense side, which calibrated finds by itself; the BM25 side has the rest",
        minimum=0,
        maximum=1,
    )
    rrf_k: int = setting(60, "constant of reciprocal rank fusion", unit="ranks", minimum=1)
    planner_parts: int = setting(
        4, "most parts that the planner splits a question into", unit="questions", minimum=2, maximum=5
    )

    boost_keywords: str = setting(
        "", "keywords that lift nodes, such as: homologation | approval = 0.3; ABS = 0.1; weights from -1 to 1"
    )
    reranker: str = setting(
        "none", "what orders the nodes anew after retrieval", choices=("none", "llm", "cross_encoder", "cohere")
    )
    rerank_candidates: int = setting(
        20, "nodes that a reranker looks at and diversity chooses from", unit="nodes", minimum=1, maximum=1_000
    )
    rerank_timeout_s: float = setting(20.0, "total time for reranking", unit="seconds", minimum=0.05)
    cross_encoder_model: str = setting(
        "cross-encoder/mmarco-mMiniLMv2-L12-H384-v1", "name or folder of the cross-encoder, extra rerank"
    )
    cohere_model: str = setting("rerank-v3.5", "Cohere's rerank model, extra rerank")
    cohere_api_key: Secret = setting(Secret(""), "key for Cohere; never shown", alias="COHERE_API_KEY")
    mmr_trade_off: float = setting(
        1.0, "1 ranks by relevance alone, less prefers nodes unlike each other", minimum=0, maximum=1
    )
    adaptive_top_k: bool = setting(False, "keep fewer nodes for simple questions and more for complex ones")
    score_fall: float = setting(
        0.0, "stop at the first gap larger than this share of the range of scores; 0 never stops", minimum=0, maximum=1
    )
    expand_neighbours: int = setting(
        0, "chunks of the same section to add on each side of a hit", unit="chunks", minimum=0, maximum=10
    )

    answer_sentences: int = setting(
        4, "most sentences in an extractive answer", unit="sentences", minimum=1, maximum=50
    )
    answer_threshold: float = setting(0.4, "confidence below which nothing is answered", minimum=0, maximum=1)
    answer_rescoring: bool = setting(
        True, "compare sentences of an extractive answer with the question by vectors, too, not by words alone"
    )
    unsupported_sentences: str = setting(
        "flag",
        "what becomes of sentences of a model that no passage supports: told in the answer's checks (flag), marked "
        "with [?] as well (mark), or left out (drop)",
        choices=("flag", "mark", "drop"),
    )
    context_passages: int = setting(
        0, "most passages a model reads; 0 for 5, and 10 for a complex question", unit="passages", minimum=0
    )
    cache_ttl_s: float = setting(
        1_800.0, "how long an answer stays cached; 0 turns the answer cache off", unit="seconds", minimum=0
    )
    cache_max_entries: int = setting(500, "answers kept; 0 turns the answer cache off", unit="answers", minimum=0)
    redis_url: Secret = setting(
        Secret(""), "Redis that shares answers and vectors with other processes; empty for memory only; never shown",
        alias="REDIS_URL",
    )  # fmt: skip
    redis_timeout_ms: float = setting(
        50.0, "total time for one call to Redis", unit="milliseconds", minimum=1, maximum=10_000
    )

    qdrant_url: Secret = setting(
        Secret(""), "Qdrant server that holds new indexes, such as http://localhost:6333; empty for the data directory",
        alias="QDRANT_URL",
    )  # fmt: skip
    qdrant_api_key: Secret = setting(Secret(""), "key for Qdrant; never shown", alias="QDRANT_API_KEY")
    qdrant_prefix: str = setting("agentic-retriever-", "what the names of new collections begin with")
    qdrant_timeout_s: float = setting(10.0, "total time for one call to Qdrant", unit="seconds", minimum=0.1)
    qdrant_shards: int = setting(0, "shards of a new collection; 0 leaves that to the server", unit="shards", minimum=0)
    qdrant_replicas: int = setting(0, "copies of each shard; 0 leaves that to the server", unit="copies", minimum=0)

    query_log: SecretUrl = setting(
        SecretUrl("sqlite"),
        "history of queries: none, sqlite for DATA_DIR/queries.sqlite, or postgresql://USER:PASSWORD@HOST/DATABASE, "
        "extra postgres; never shown",
    )
    query_log_text: str = setting(
        "plain", "what the history keeps of questions: text, keyed hash or nothing", choices=("plain", "hashed", "none")
    )
    query_log_retention_days: float = setting(
        90.0, "age from which queries leave the history; 0 keeps them", unit="days", minimum=0, maximum=36_500
    )
    query_log_max_rows: int = setting(
        1_000_000, "most queries in the history; 0 sets no limit", unit="queries", minimum=0
    )

    def __post_init__(self) -> None:
        if self.selector == "learned":
            raise ConfigError("selector learned is gone, since it was better on no collection; use auto")
        for f in fields(self):
            object.__setattr__(self, f.name, checked(f.name, str(f.type), spec_of(f), getattr(self, f.name)))
        if self.chunk_overlap >= self.chunk_size:
            raise ConfigError(f"chunk_overlap {self.chunk_overlap} must be below chunk_size {self.chunk_size} (tokens)")
        if self.leaf_size > self.chunk_size:
            raise ConfigError(f"leaf_size {self.leaf_size} must not exceed chunk_size {self.chunk_size} (tokens)")
        if self.on_abstain == "default" and not self.default_index:
            raise ConfigError("on_abstain is default, so default_index must name an index")
        if self.top_k > self.max_top_k:
            raise ConfigError(f"top_k {self.top_k} must not exceed max_top_k {self.max_top_k} (nodes)")

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> RouterConfig:
        """Read the settings from environment variables; an empty variable counts as not set.

        Args:
            env: The variables; the process's by default.

        Returns:
            The settings, defaults where nothing was set.

        Raises:
            ConfigError: If a variable with our prefix is unknown, or a value is ill-typed or out of range.
        """
        return cls(**settings_in(env, fields(cls)))

    @classmethod
    def load(cls, dotenv: str | Path = ".env", env: Mapping[str, str] = os.environ) -> RouterConfig:
        """Read a ``.env`` file, if there is one, and the environment, which wins.

        Args:
            dotenv: Path of the file.
            env: The variables; the process's by default.

        Raises:
            ConfigError: As :meth:`from_env`.
        """
        file = read_dotenv(dotenv)
        try:
            return cls.from_env({**file, **env})
        except ConfigError as err:
            cls.from_env(env)  # says what is wrong with the environment alone, if something is
            raise ConfigError(f"{err} (in {dotenv})") from err

    def with_changes(self, **changes: object) -> RouterConfig:
        """Return a copy with some settings changed.

        Raises:
            ConfigError: If a name is unknown or a value does not fit.
        """
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                raise ConfigError(unknown_name("setting", name, known))
        return replace(self, **changes)  # type: ignore[arg-type]  # each value is checked in __post_init__

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, secrets as stars."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self)}
