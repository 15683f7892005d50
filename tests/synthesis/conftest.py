import numpy as np
import pytest
from answer_nodes import make_node

from agentic_retriever.indices.profile import IndexProfile
from agentic_retriever.synthesis import Evidence


@pytest.fixture
def handbook():
    travel = (
        "# Travel\n\n## 2.1 Meals\n\nThe daily allowance for meals is EUR 48 in Germany. Receipts are not needed.\n\n"
        "## 2.2 Hotels\n\nHotels are booked by the travel desk. A night may cost up to EUR 140. "
        "Only the CFO can approve more.\n"
    )
    budget = (
        "## Milestones\n\n| Step | Owner | Date |\n|---|---|---|\n| Strategy letter | CEO | 17 March 2025 |\n"
        "| Unit sales plan | Sales operations | 12 May 2025 |\n\nThe budget year begins on 1 October.\n"
    )
    return [
        make_node(travel, start=0, doc_id="travel", node_id="t1", title="Travel", section="2 > 2.1", page=3),
        make_node(budget, start=100, doc_id="budget", node_id="b1", title="Budget", section="Calendar"),
    ]


@pytest.fixture
def nearness():
    def near(spreads: float, nodes: int = 40) -> Evidence:
        """Evidence that the first passage stands so many standard deviations above what unrelated questions reach."""
        rng = np.random.default_rng(3)
        sample = rng.normal(size=(nodes, 64))
        sample /= np.linalg.norm(sample, axis=1, keepdims=True)
        unrelated = rng.normal(size=(8, 64)) / 8
        profile = IndexProfile(
            name="x", description="", version=1, nodes=nodes, language="en", description_vector=np.zeros(0),
            sample=sample, document_frequency={"daili": 2, "allow": 2, "meal": 3}, background_std=0.1,
        )  # fmt: skip
        far = sample @ unrelated.T
        best = float(np.median(far.max(axis=0)) + spreads * far.std())
        return Evidence(
            query_vector=unrelated[0], profile=profile, unrelated=unrelated, cosines={"t1": best, "b1": 0.1}
        )

    return near
