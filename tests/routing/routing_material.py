"""Texts, vectors and cards that the tests of routing share."""

import numpy as np

from agentic_retriever.schema import Strategy, StrategyCard
from agentic_retriever.testing.fakes import FakeEmbedding

BOATS = [
    "The ferry leaves the harbour at nine.", "A sail tears in strong wind.", "The anchor chain weighs two tons.",
    "Every boat needs a life vest.", "The harbour master keeps the mooring list.",
]  # fmt: skip
BREAD = [
    "Knead the dough for ten minutes.", "Sourdough rises overnight in the bowl.", "Bake the loaf in a hot oven.",
    "Rye flour needs more water.", "The crust turns brown in the oven.",
]  # fmt: skip
THAI = ["โฉนดที่ดินในจังหวัดเชียงใหม่", "ค่าธรรมเนียมการโอนที่ดิน", "ที่ดินเกษตรกรรมในขอนแก่น"]


def embed(text: str, dimension: int = 32) -> np.ndarray:
    return np.array(FakeEmbedding(dimension=dimension).get_query_embedding(text), dtype=np.float32)


def make_card(strategy: Strategy) -> StrategyCard:
    return StrategyCard(strategy=strategy, description="", needs=(), cost=1.0, typical_ms=1.0)
