"""Two small indexes that the tests of the router and of the bridge ask: their texts, a question and its answer."""

from llama_index.core.schema import Document

from agentic_retriever.schema import NO_LIMITS, Selection

ANIMALS = {
    "cats": "The cat sleeps sixteen hours a day. A cat purrs when it is content.",
    "dogs": "The dog barks at the postman. A dog walks twice a day.",
    "owls": "The owl hunts at night. An owl turns its head far round.",
}
PLANETS = {
    "venus": "Venus spins backwards. A day on Venus is longer than its year.",
    "mars": "Mars has two moons named Phobos and Deimos.",
}
QUESTION = "How many hours does the cat sleep?"
THEN, MEANT = "And the dog?", "How many hours does the dog sleep?"  # a follow-up, and what it means
GOOD = "The cat sleeps sixteen hours a day. [1]"


def documents(texts, **metadata):
    """One document for each text, of a kind told by the first letter of its title."""
    return [
        Document(text=text, doc_id=name, metadata={"title": name, "kind": name[0], **metadata})
        for name, text in texts.items()
    ]


async def asked(router, way, question=QUESTION, shown=None, **wanted):
    """Ask in one of the four ways, and return the answer; what a stream shows before it ends or fails is kept."""
    if way in {"query", "aquery"}:
        return router.query(question, **wanted) if way == "query" else await router.aquery(question, **wanted)
    shown = [] if shown is None else shown
    stream = getattr(router, way)(question, **wanted)
    if way == "stream":
        for piece in stream:
            shown.append(piece)
    else:
        async for piece in stream:
            shown.append(piece)
    assert "".join(shown) == stream.answer.text
    return stream.answer


class Chooser:
    """A stage one that says what the test wants."""

    mode = "profile"

    def __init__(self, name="animals", names=(), abstained=False):
        self.name, self.names, self.abstained = name, names, abstained

    def classify(self, query, profiles, *, query_vector, allowance=NO_LIMITS):
        rest = [p.name for p in profiles if p.name != self.name]
        scores = {self.name: 0.5, **dict.fromkeys(rest, 0.5 / len(rest))}
        return Selection(
            name=self.name, names=self.names, confidence=0.5, scores=scores, margin=0.1, reason="told", mode=self.mode,
            abstained=self.abstained,
        )  # fmt: skip
