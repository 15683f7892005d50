"""After retrieval: keyword boosting, reranking, diversity, the right number of nodes, and what stands around them."""

from agentic_retriever.retrievers.postprocess.adaptive import adaptive_top_k, stop_at_fall
from agentic_retriever.retrievers.postprocess.boost import Boost, boost, parse_boosts
from agentic_retriever.retrievers.postprocess.expand import EXPANDED_KEY, expand, section_neighbours
from agentic_retriever.retrievers.postprocess.mmr import mmr
from agentic_retriever.retrievers.postprocess.node_postprocessors import NodePostprocessors
from agentic_retriever.retrievers.postprocess.pipeline import (
    PostprocessSettings,
    PostprocessTools,
    make_reranker,
    postprocess,
    store_vectors,
)
from agentic_retriever.retrievers.postprocess.rerank import NoReranker, Reranker
from agentic_retriever.retrievers.postprocess.rerank_llm import LLMReranker
from agentic_retriever.retrievers.postprocess.rerank_models import CohereReranker, CrossEncoderReranker

__all__ = [
    "EXPANDED_KEY",
    "Boost",
    "CohereReranker",
    "CrossEncoderReranker",
    "LLMReranker",
    "NoReranker",
    "NodePostprocessors",
    "PostprocessSettings",
    "PostprocessTools",
    "Reranker",
    "adaptive_top_k",
    "boost",
    "expand",
    "make_reranker",
    "mmr",
    "parse_boosts",
    "postprocess",
    "section_neighbours",
    "stop_at_fall",
    "store_vectors",
]
