import pytest
from answer_nodes import make_node


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
