"""The search by words of a stored index: a BM25 index of its own, or the sparse vectors on its server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import StoreDamagedError, StoreError
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.indices.keyword_search import SparseKeywordView
from agentic_retriever.indices.node_text import embedded_text
from agentic_retriever.indices.profile_view import save_derived
from agentic_retriever.indices.sparse import SparseBM25
from agentic_retriever.text import Tokenizer

if TYPE_CHECKING:
    from agentic_retriever.indices.index import Index
    from agentic_retriever.indices.ingest import Progress
    from agentic_retriever.indices.keyword_search import KeywordSearch
    from agentic_retriever.indices.server_words import ServerWords

logger = logging.getLogger(__name__)

KEYWORD: Final = "keyword"
MAX_DRIFT: Final = 0.1
"""How far the average length may be from that of the stored vectors, as a share, before these are made again."""
_FITTED_ON: Final = 20_000


def index_words(index: Index) -> ServerWords | None:
    """Return the sparse vectors on the index's server, or ``None`` where its nodes are in this process."""
    if not index.is_remote:
        return None
    from agentic_retriever.indices.server_store import QdrantServerVectorStore  # noqa: PLC0415 - needs an extra

    store = index.vector_store
    return store.words if isinstance(store, QdrantServerVectorStore) else None


def index_keyword(index: Index, version: int) -> KeywordSearch:
    """Return the search by words of a version: the saved one, else a new one, else the server's.

    Args:
        index: The index.
        version: Its version now.

    Raises:
        StoreError: If the nodes cannot be read, or the words on the server were cut otherwise than now.
    """
    words = index_words(index)
    if words is None:
        return _local(index, version)
    if words.sparse is not None and not words.sparse.is_current:
        raise StoreError(
            f"the words of index {index.name!r} on its server were cut by another version; bring them up to date with: "
            f"agentic-retriever index build {index.name}"
        )
    return SparseKeywordView(words, version, index.count)


def revise_words(index: Index, progress: Progress | None) -> None:
    """Make the sparse vectors on the index's server again where they no longer fit its texts.

    Args:
        index: The index; nothing is done for one without a server.
        progress: Hears how far it is.

    Raises:
        StoreError: If the server failed; a second run goes on.
    """
    words = index_words(index)
    if words is None or not index.count():
        return
    texts = [embedded_text(node) for _, node in zip(range(_FITTED_ON), index.known_nodes(), strict=False)]
    fitted, known = SparseBM25.fitted(texts), words.sparse
    if (
        known is not None
        and (known.language, known.fingerprint) == (fitted.language, fitted.fingerprint)
        and abs(known.average - fitted.average) <= MAX_DRIFT * fitted.average
    ):
        return
    if progress is not None:
        progress.nodes(index.count())
    words.revise(fitted, progress.nodes_done if progress is not None else lambda _done: None)


def _local(index: Index, version: int) -> KeywordIndex:
    tokenizer = Tokenizer(language=index.language)
    folder = index.folder / KEYWORD
    try:
        saved = KeywordIndex.load(folder, tokenizer=tokenizer, version=version)
    except StoreDamagedError as err:
        logger.warning("%s; building the keyword index again", err)
        saved = None
    if saved is not None:
        return saved
    items = ((node.node_id, embedded_text(node)) for node in index.nodes())
    built = KeywordIndex.build(items, tokenizer=tokenizer, version=version)
    save_derived(index, lambda: built.save(folder), "keyword index")
    return built
