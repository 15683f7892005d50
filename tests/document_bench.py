"""A router with documents and workers, for the tests of their life."""

from collections import Counter

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.config import Secret
from agentic_retriever.lifecycle.worker import DocumentWorker
from agentic_retriever.testing import FakeEmbedding

INDEX = "animals"
CATS = b"# Cats\n\nThe cat sleeps sixteen hours a day and purrs."
DOGS = b"# Dogs\n\nThe dog barks at the postman twice a day."


class Bench:
    """A router over a data directory, with workers that run when the test says so, and a count of what is embedded."""

    def __init__(self, folder, url=""):
        self.folder, self.url = folder, url
        self.embedding = FakeEmbedding(dimension=64)
        self.made, self.workers = [], []
        self.router = self.open()

    def open(self, **settings):
        config = RouterConfig(data_dir=self.folder, database_url=Secret(self.url), **settings)
        self.made.append(AgenticRouter(config, embedding=self.embedding))
        return self.made[-1]

    @property
    def documents(self):
        return self.router.documents

    def upload(self, content=CATS, filename="cats.md", **said):
        return self.documents.upload(content, index=INDEX, filename=filename, **said)

    def worker(self, *, lease_s=60.0, concurrency=1):
        made = self.router
        self.workers.append(DocumentWorker(made.resources, made.documents, lease_s=lease_s, concurrency=concurrency))
        return self.workers[-1]

    def process(self, *records, concurrency=1):
        """Have a worker process what waits, and end it."""
        worker = self.worker(concurrency=concurrency)
        worker.start()
        done = [self.documents.wait(record.id, timeout_s=30) for record in records]
        worker.stop()
        for name in {record.index for record in records}:
            self.router.stored_index(name).build_views()
        return done[0] if len(done) == 1 else done

    def indexed(self, content=CATS, filename="cats.md", **said):
        return self.process(self.upload(content, filename, **said))

    def found(self, query="cat", **options):
        """The documents that a search finds, and how often."""
        retrieval = self.router.retrieve(query, index=INDEX, strategy="vector", **options)
        return Counter(scored.node.ref_doc_id for scored in retrieval.nodes)

    def embedded(self):
        """Texts embedded since the last time this was asked, questions left out."""
        made = [text for text in self.embedding.calls if len(text.split()) > 3]
        self.embedding.calls.clear()
        return made

    def close(self):
        for one in [*self.workers]:
            one.stop()
        for one in self.made:
            one.close()
