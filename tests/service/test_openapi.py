"""Whatever the OpenAPI document allows, and what it does not, is answered as it says, and never by a failure."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

OPERATIONS = 41  # of the document, so that none is left out unseen
EXAMPLES = 12  # of each operation, the same every time


@pytest.fixture
def operations(app):
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "localhost"})
    return [found.ok() for found in schema.get_all_operations()]


@pytest.fixture
def excluded():
    """Whether what a schema allows is taken: what a file holds, and that one of two fields is there, none says."""
    from schemathesis.checks import load_all_checks

    load_all_checks()
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    return [positive_data_acceptance]


def test_every_operation_takes_what_it_says_and_refuses_the_rest(operations, excluded):
    from schemathesis.core.failures import FailureGroup

    assert len(operations) >= OPERATIONS
    failed = {}
    for operation in operations:
        strategies = [
            operation.as_strategy(generation_mode=mode)
            for mode in schemathesis.GenerationMode
            if mode.is_positive or operation.body or operation.query or operation.path_parameters
        ]

        @settings(
            max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=st.one_of(strategies))
        def answers_well(case):
            case.call_and_validate(headers={"Host": "localhost"}, excluded_checks=excluded)

        try:
            answers_well()
        except FailureGroup as err:
            failed[operation.label] = "\n".join(str(one)[:1000] for one in err.exceptions)
    assert not failed, "\n\n".join(f"{label}: {said}" for label, said in failed.items())
