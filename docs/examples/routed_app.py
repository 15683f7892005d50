"""Answers a question about a folder of files: python APP.py FOLDER QUESTION."""

import sys

from llama_index.core import SimpleDirectoryReader, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.llms.ollama import Ollama

from agentic_retriever import AgenticRouter


def make_engine(folder, embedding, llm):
    index = VectorStoreIndex.from_documents(
        SimpleDirectoryReader(folder, recursive=True).load_data(),
        transformations=[SentenceSplitter(chunk_size=512, chunk_overlap=50)],
        embed_model=embedding,
    )
    router = AgenticRouter.from_indexes({"files": index}, embedding=embedding, llm=llm)
    return router.as_query_engine(top_k=4)


def show(response):
    print(response)
    for source in response.source_nodes:
        print(f"{source.score:.2f}", source.node.metadata.get("file_name"), source.node.get_content()[:60])


if __name__ == "__main__":
    folder, question = sys.argv[1:3]
    embedding, llm = OllamaEmbedding("nomic-embed-text"), Ollama("llama3:8b", request_timeout=60)
    engine = make_engine(folder, embedding, llm)
    show(engine.query(question))
