from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.cache import SingleFlightCache
from agentic_retriever.errors import ConfigError

KEYS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), KEYS),
        st.tuples(st.just("put"), KEYS, st.integers(0, 9), st.sampled_from([0.0, 1.0, 2.5, 10.0])),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        st.tuples(st.just("clear")),
    ),
    max_size=60,
)


class Model:
    """The same thing, as plainly as it can be said."""

    def __init__(self, most):
        self.most = most
        self.now = 0.0
        self.entries = OrderedDict()

    def fresh(self):
        for key in [key for key, (_, ends) in self.entries.items() if self.now >= ends]:
            del self.entries[key]

    def get(self, key):
        self.fresh()
        if key not in self.entries:
            return None
        self.entries.move_to_end(key)
        return (self.entries[key][0],)

    def put(self, key, value, ttl_s):
        if not self.most or ttl_s <= 0:
            return
        self.fresh()
        if key not in self.entries:
            while len(self.entries) >= self.most:
                self.entries.popitem(last=False)
        self.entries[key] = (value, self.now + ttl_s)
        self.entries.move_to_end(key)

    def clear(self):
        self.fresh()
        count = len(self.entries)
        self.entries.clear()
        return count


@given(st.integers(0, 4), st.sampled_from([0, 2.0]), STEPS)
def test_single_flight_on_top_behaves_like_the_model_with_one_ttl(most, ttl_s, steps):
    model = Model(most)
    cache = SingleFlightCache(max_entries=most, ttl_s=ttl_s, timer=lambda: model.now)
    for name, *arguments in steps:
        if name == "wait":
            model.now += arguments[0]
        elif name == "clear":
            assert cache.clear() == model.clear()
        else:
            key, value = arguments[0], len(model.entries)
            known = model.get(key)
            assert cache.get_or_compute(key, lambda value=value: value) == ((known or (value,))[0], known is not None)
            if known is None:
                model.put(key, value, ttl_s)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"max_entries": -1, "ttl_s": 1}, "max_entries"),
        ({"max_entries": 1, "ttl_s": -1}, "ttl_s"),
        ({"max_entries": 1, "ttl_s": float("nan")}, "ttl_s"),
        ({"max_entries": 1, "ttl_s": float("inf")}, "ttl_s"),
    ],
)
def test_numbers_out_of_range_are_refused(numbers, told):
    with pytest.raises(ConfigError, match=told):
        SingleFlightCache(**numbers)
