"""Our BM25 for LlamaIndex applications: what LlamaIndex's ``BM25Retriever`` is, with our tokens and filters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index.core.storage.docstore import BaseDocumentStore
from llama_index.core.storage.docstore.utils import doc_to_json, json_to_doc
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever as LlamaBM25Retriever

from agentic_retriever.errors import ConfigError, IndexingError, StoreDamagedError, StoreError
from agentic_retriever.filters import check_filters, is_empty, node_fields, predicate
from agentic_retriever.indices import Index, KeywordIndex, searched_text
from agentic_retriever.indices.attached.sources import recognise
from agentic_retriever.indices.profile import ProfiledNode, count_languages, dominant_language
from agentic_retriever.retrievers import base
from agentic_retriever.stores.files import read_files, read_header, write_sealed
from agentic_retriever.text import Tokenizer
from agentic_retriever.tracing import safe_callbacks

_HEADER: Final = {"kind": "bm25_retriever", "format": 1}
_NODES: Final = "nodes.json"
_WORDS: Final = "keyword"
_VERSION: Final = 1


class BM25Retriever(base.CheckedRetriever, LlamaBM25Retriever):
    """LlamaIndex's ``BM25Retriever`` with terms for every script and filters that hold.

    It takes the place of ``llama_index.retrievers.bm25.BM25Retriever`` where one is expected. What is different: Thai,
    Chinese and Japanese words are found, and codes such as ``C++`` or ``A-12``; a node without any word of the question
    is never returned, nor one that does not satisfy the filters; an empty corpus gives an empty result; more results
    than there are nodes may be asked for; a saved retriever finds the same when it is loaded; and ``aretrieve`` leaves
    the event loop free. Results are copies, by falling score and then by id. The metadata that nodes show to embedding
    models is searched as their text is. Many threads may share one.

    ::

        retriever = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=5)
        retriever = BM25Retriever(index=router.index("contracts"))  # searches the router's own words, indexes nothing

    Args:
        nodes: What to search; they are copied, so later changes to them do not count.
        index: An index of a router, in place of nodes; its changes are seen.
        similarity_top_k: How many nodes are returned at most.
        filters: What nodes must satisfy, with the meaning that filters have everywhere in this package.
        language: Language of the nodes, ISO 639-1, for stems and stop words; found out from the nodes by default.
        words: A keyword index of these nodes, so that none is built.
        callback_manager: LlamaIndex callbacks; none by default.
        verbose: As every LlamaIndex retriever takes it.
        unsupported: Nothing; LlamaIndex's options for cutting words are refused by name.

    Raises:
        ConfigError: If both or neither of ``nodes`` and ``index`` are given, or an option that does not apply.
        FilterError: If the filters cannot be evaluated.
        IndexingError: If a node id comes twice.
    """

    def __init__(  # noqa: PLR0913 - most of them are LlamaIndex's
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        index: Index | None = None,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        filters: MetadataFilters | None = None,
        language: str | None = None,
        words: KeywordIndex | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
        **unsupported: object,
    ) -> None:
        if unsupported:
            how = "words are cut by the language of the nodes, in every script; set language to fix it"
            raise ConfigError(f"BM25Retriever takes no {', '.join(unsupported)}: {how}")
        if (nodes is None) == (index is None):
            raise ConfigError("BM25Retriever needs nodes or an index of a router, one of them")
        BaseRetriever.__init__(self, callback_manager=callback_manager or safe_callbacks(), verbose=verbose)
        self.similarity_top_k = similarity_top_k
        check_filters(filters)
        self._filters = filters
        self._index = index
        self._nodes = {node.node_id: base.copied_node(node) for node in nodes or ()}
        if len(self._nodes) < len(nodes or ()):
            raise IndexingError("a node id comes twice among the nodes; node ids must be unique")
        if words is None:
            texts = {node_id: searched_text(node) for node_id, node in self._nodes.items()}
            profiled = [ProfiledNode(node_id, texts[node_id], node.metadata) for node_id, node in self._nodes.items()]
            tokenizer = Tokenizer(language or dominant_language(count_languages(profiled)))
            words = KeywordIndex.build(texts.items(), tokenizer=tokenizer, version=_VERSION)
        self._words = words
        satisfies = predicate(filters)
        found = (node_id for node_id, node in self._nodes.items() if satisfies(node_fields(node)))
        self._allowed = None if is_empty(filters) else frozenset(found)

    @classmethod
    def from_defaults(  # type: ignore[override]  # how words are cut is no option here
        cls,
        index: Index | BaseIndex[Any] | None = None,
        nodes: Sequence[BaseNode] | None = None,
        docstore: BaseDocumentStore | None = None,
        **options: Any,  # noqa: ANN401 - those of the class
    ) -> BM25Retriever:
        """Make a retriever over an index, nodes or a docstore.

        Args:
            index: An index of a router, or of LlamaIndex if its nodes can be listed.
            nodes: The nodes themselves, perhaps none.
            docstore: Where the nodes are.
            options: Those of the class.

        Raises:
            ConfigError: Unless exactly one of the three is given; otherwise as the class.
            IndexingError: If the nodes of the index cannot be listed.
        """
        if sum(given is not None for given in (index, nodes, docstore)) != 1:
            raise ConfigError("pass exactly one of index, nodes and docstore")
        if isinstance(index, Index):
            return cls(index=index, **options)
        if docstore is not None:
            nodes = list(docstore.docs.values())
        if index is not None:
            source = recognise("given", index).source
            if source is None:
                raise IndexingError(f"the nodes of this {type(index).__name__} cannot be listed; pass nodes=...")
            nodes = list(source.nodes())
        return cls(nodes, **options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        request = base.RetrievalRequest(query_bundle.query_str, self.similarity_top_k, self._filters)
        base.check_request(request)
        if self._index is not None:
            ranking, nodes = base.search_words(self._index, request, request.top_k)
            found = base.take_nodes(self._index, ranking, nodes, request.top_k)
        else:
            ranking = self._words.search(request.query, request.top_k, allowed=self._allowed)
            known = [(self._nodes[node_id], score) for node_id, score in ranking if node_id in self._nodes]
            found = [NodeWithScore(node=node, score=score) for node, score in known]
        return base.keep_promises(base.SearchResult(found, sources={base.BM25: dict(ranking)}), request).nodes

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def persist(self, path: str, encoding: str = "utf-8", **kwargs: Any) -> None:  # noqa: ARG002, ANN401 - LlamaIndex's
        """Save nodes, words and settings into a folder, in place of all that was there.

        Args:
            path: The folder.
            encoding: Not used; files are UTF-8.
            kwargs: Not used.

        Raises:
            ConfigError: If it searches an index of a router, which keeps its own files.
            StoreError: If the folder cannot be written.
        """
        if self._index is not None:
            raise ConfigError(f"index {self._index.name!r} keeps its own files; open it by its name instead")
        header = {
            **_HEADER,
            "language": self._words.tokenizer.language,
            "similarity_top_k": self.similarity_top_k,
            "filters": None if self._filters is None else self._filters.model_dump(mode="json"),
        }
        rows = [doc_to_json(node) for node in self._nodes.values()]
        write_sealed(Path(path), header, {_NODES: json.dumps(rows).encode()})
        self._words.save(Path(path) / _WORDS)

    @classmethod
    def from_persist_dir(
        cls,
        path: str,
        encoding: str = "utf-8",  # noqa: ARG003 - LlamaIndex's signature
        **kwargs: Any,  # noqa: ANN401 - options of the class
    ) -> BM25Retriever:
        """Load what :meth:`persist` saved; it finds what it found before.

        Args:
            path: The folder.
            encoding: Not used; files are UTF-8.
            kwargs: Options of the class, in place of those that were saved.

        Raises:
            StoreError: If the folder is not there or holds something else.
            StoreDamagedError: If a file was cut or edited; it is named.
        """
        folder = Path(path)
        header = read_header(folder)
        if header is None or any(header.get(name) != value for name, value in _HEADER.items()):
            raise StoreError(f"{folder} holds no retriever that this version saved; save one with persist()")
        try:
            nodes = [json_to_doc(row) for row in json.loads(read_files(folder, [_NODES])[_NODES])]
            filters = None if header["filters"] is None else MetadataFilters.model_validate(header["filters"])
        except (ValueError, KeyError, TypeError) as err:
            raise StoreDamagedError(f"{folder} is damaged: {_NODES} cannot be read back; save it again") from err
        words = KeywordIndex.load(folder / _WORDS, tokenizer=Tokenizer(header["language"]), version=_VERSION)
        saved = {name: header[name] for name in ("language", "similarity_top_k")}
        return cls(nodes, **{**saved, "filters": filters, "words": words, **kwargs})
