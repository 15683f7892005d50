"""What a filter becomes before it is run: tests over bitmaps that know about how many rows will pass.

A test is *exact*, or it lets too many rows through where a field's texts are not indexed; never too few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pyroaring import BitMap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.indices.prefilter.ordered import OrderedKeys, Side

_CONTAINER: Final = 2**16  # rows that one container of a bitmap spans
_DENSE: Final = 4_096  # from so many rows on, a container keeps a bit for every row it spans
_DENSE_COST: Final = 750  # what such a one costs to go through, in single rows; measured
_MANY: Final = 16  # from so many bitmaps on it is faster to join them first


class Test(Protocol):
    """Something that rows pass or fail.

    Attributes:
        low: At least so many rows pass.
        high: At most so many rows pass.
        cost: How much work it is to find them, in single rows of a bitmap.
        exact: Whether it lets through nothing but what the filter means.
    """

    @property
    def low(self) -> int: ...  # noqa: D102 - see the class
    @property
    def high(self) -> int: ...  # noqa: D102
    @property
    def cost(self) -> int: ...  # noqa: D102
    @property
    def exact(self) -> bool: ...  # noqa: D102

    def rows(self, within: BitMap | None = None) -> BitMap:
        """Find the rows that pass.

        Args:
            within: Only these rows; ``None`` for all.

        Returns:
            The rows; not to be changed.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf:
    """Passed by the rows of any of some bitmaps.

    Attributes:
        bitmaps: The bitmaps; none for a test that nothing passes.
        total: How many rows there are in all.
        exact: See :class:`Test`.
    """

    bitmaps: Sequence[BitMap]
    total: int
    exact: bool = True

    @property
    def low(self) -> int:
        """The longest bitmap's rows."""
        return max(map(len, self.bitmaps), default=0) if self.exact else 0

    @property
    def high(self) -> int:
        """All rows of all bitmaps."""
        return min(self.total, sum(map(len, self.bitmaps)))

    @property
    def cost(self) -> int:
        """Single rows, or full containers."""
        return sum(bitmap_cost(bitmap) for bitmap in self.bitmaps)

    def rows(self, within: BitMap | None = None) -> BitMap:
        """Find the rows that pass."""
        bitmaps = self.bitmaps
        if not bitmaps:
            return BitMap()
        if within is None:
            return bitmaps[0] if len(bitmaps) == 1 else BitMap.union(*bitmaps)
        if len(bitmaps) == 1:
            return bitmaps[0] & within
        if len(bitmaps) < _MANY:
            return BitMap.union(*(bitmap & within for bitmap in bitmaps))
        return BitMap.union(*bitmaps) & within


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Passed by the rows that have a key on one side of a bound; always exact.

    Attributes:
        keys: The keys.
        side: The bound, as the keys' type holds it.
        low: See :class:`Test`; counted in the tree.
        high: See :class:`Test`; counted in the tree.
        cost: See :class:`Test`.
        exact: See :class:`Test`.
    """

    keys: OrderedKeys
    side: Side
    low: int
    high: int
    cost: int
    exact: bool = True

    @classmethod
    def of(cls, keys: OrderedKeys, side: Side) -> Compared:
        """Make the test, and count.

        Args:
            keys: The keys.
            side: The bound.

        Returns:
            The test.
        """
        side = keys.exact(side)
        low, high = keys.counts(side)
        return cls(keys, side, low, high, min(high, bitmap_cost(keys.tree.bitmap)))

    def rows(self, within: BitMap | None = None) -> BitMap:
        """Find the rows that pass."""
        return self.keys.find(self.side, within)


@dataclass(frozen=True, slots=True, eq=False)
class Without:
    """Passed by rows that fail another test.

    Attributes:
        base: The rows that it is about.
        every: Whether these are all rows there are.
        test: The other test, exact.
    """

    base: BitMap
    every: bool
    test: Test

    @property
    def low(self) -> int:
        """What is left when as many as can be pass the other."""
        return max(0, len(self.base) - self.test.high)

    @property
    def high(self) -> int:
        """What is left when as few as can be pass the other."""
        # Some of those that pass the other may lie outside the base, but for all clauses made here they do not.
        return max(0, len(self.base) - self.test.low)

    @property
    def cost(self) -> int:
        """That of the other, and of the base where it restricts."""
        return self.test.cost + (0 if self.every else bitmap_cost(self.base))

    @property
    def exact(self) -> bool:
        """Always."""
        return True

    def rows(self, within: BitMap | None = None) -> BitMap:
        """Find the rows that pass."""
        start = self.base if within is None else within if self.every else self.base & within
        return start - self.test.rows(start)


@dataclass(frozen=True, slots=True, eq=False)
class Either:
    """Passed by rows that pass any of some tests.

    Attributes:
        tests: The tests.
        total: How many rows there are in all.
    """

    tests: Sequence[Test]
    total: int

    @property
    def low(self) -> int:
        """That of the widest test."""
        return max((test.low for test in self.tests), default=0)

    @property
    def high(self) -> int:
        """That of all tests together."""
        return min(self.total, sum(test.high for test in self.tests))

    @property
    def cost(self) -> int:
        """That of all tests together."""
        return sum(test.cost for test in self.tests)

    @property
    def exact(self) -> bool:
        """Whether all tests are."""
        return all(test.exact for test in self.tests)

    def rows(self, within: BitMap | None = None) -> BitMap:
        """Find the rows that pass."""
        found = [test.rows(within) for test in self.tests]
        if len(found) < 2:
            return found[0] if found else BitMap()
        return BitMap.union(*found)


@dataclass(frozen=True, slots=True, eq=False)
class Both:
    """Passed by rows that pass every one of some tests, run from the cheapest and strictest on.

    Attributes:
        tests: The tests, at least one.
        total: How many rows there are in all.
    """

    tests: Sequence[Test]
    total: int

    @property
    def low(self) -> int:
        """What is left when the tests fail different rows."""
        return max(0, sum(test.low for test in self.tests) - self.total * (len(self.tests) - 1))

    @property
    def high(self) -> int:
        """That of the strictest test."""
        return min(test.high for test in self.tests)

    @property
    def cost(self) -> int:
        """That of the cheapest test; the others see little of what it leaves."""
        return min(test.cost for test in self.tests)

    @property
    def exact(self) -> bool:
        """Whether all tests are."""
        return all(test.exact for test in self.tests)

    def rows(self, within: BitMap | None = None) -> BitMap:
        """Find the rows that pass; what nothing can pass ends it at once."""
        running = within
        for test in sorted(self.tests, key=self._rank):
            running = test.rows(running)
            if not running:
                break
        return BitMap() if running is None else running

    def _rank(self, test: Test) -> float:
        # The order that costs least when tests are independent: cost over the share of rows that a test removes
        # (Hellerstein and Stonebraker 1993, "Predicate Migration").
        removed = 1.0 - test.high / max(1, self.total)
        return test.cost / (removed + 0.01)


def bitmap_cost(bitmap: BitMap) -> int:
    """Say what it costs to go through a bitmap.

    Args:
        bitmap: Any bitmap.

    Returns:
        Its rows, or less where these are so dense that they are kept as bits.
    """
    if not bitmap:
        return 0
    containers = (bitmap.max() - bitmap.min()) // _CONTAINER + 1
    return len(bitmap) if len(bitmap) <= _DENSE * containers else _DENSE_COST * containers
