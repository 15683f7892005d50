from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from routing_material import BOATS, BREAD, THAI, embed, make_card

from agentic_retriever.indices.profile import IndexProfile, ProfiledNode, make_profile
from agentic_retriever.schema import Strategy, StrategyCard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@pytest.fixture
def make() -> Callable[..., IndexProfile]:
    def build(name: str, texts: Sequence[str], metadata: Sequence[dict] | None = None, **changes) -> IndexProfile:
        nodes = [ProfiledNode(f"{name}-{at}", text, metadata[at] if metadata else {}) for at, text in enumerate(texts)]
        sample = np.stack([embed(text) for text in texts]) if texts else np.zeros((0, 32), np.float32)
        description = changes.pop("description", f"all about {name}")
        return make_profile(
            nodes, sample, name=name, description=description, description_vector=embed(description), version=1
        )

    return build


@pytest.fixture
def boats(make: Callable[..., IndexProfile]) -> IndexProfile:
    return make("boats", BOATS, description="boats and the harbour")


@pytest.fixture
def bread(make: Callable[..., IndexProfile]) -> IndexProfile:
    return make("bread", BREAD, description="bread dough and the oven")


@pytest.fixture
def deeds(make: Callable[..., IndexProfile]) -> IndexProfile:
    metadata = [
        {"province": "เชียงใหม่", "land_type": "เกษตรกรรม", "area_rai": 3.5, "year": 2559},
        {"province": "ขอนแก่น", "land_type": "เกษตรกรรม", "area_rai": 22, "year": 2561},
        {"province": "ชลบุรี", "land_type": "พาณิชย์", "area_rai": 1.25, "year": 2563},
    ]
    return make("deeds", THAI, metadata)


@pytest.fixture
def all_cards() -> list[StrategyCard]:
    return [make_card(strategy) for strategy in Strategy]
