"""The workspace pool of one device: who has which place in it, and who may use his now.

A *place* is a range that a holder keeps from load to unload; a *lease* is the use of bytes during
one run. Whose places overlap take turns: `lease` gives what is free and never waits, so a run
that has to wait holds nothing meanwhile and there is no circle of waits.

There are two kinds of holders. A *bound* one was told its range and has built addresses into its
graph: it gets that range or waits. A *measured* one has an engine that finds its own scratch, so
only its bytes count: its place is where it queues, and it also takes any other free stretch. So
several runs of one such graph go side by side as far as the pool reaches.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from ge_backend.device.base import Range
from ge_backend.device.workspace.plan import MemoryPlan, Need, free_gaps, plan_memory
from ge_backend.errors import OutOfMemory, ProtocolError
from ge_backend.model.config.sizes import format_bytes

__all__ = ["Lease", "Pool", "PoolFigures", "PoolWorkspace"]

# Until more is known every holder counts as one that has run for so long.
PRIOR_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """The exclusive use of some bytes until it is released; compared by identity."""

    holder: str
    ranges: tuple[Range, ...]
    begun_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """A pool in numbers.

    Attributes:
        size_bytes: 0 where there is no limit.
        placed_bytes: that lie in the place of at least one holder.
        leased_bytes: that runs use now.
        peak_bytes: the most that runs ever used at once.
        holders: what each asked for, by name, in the order of their coming.
    """

    size_bytes: int
    placed_bytes: int
    leased_bytes: int
    peak_bytes: int
    holders: dict[str, int]


@dataclass(slots=True)
class _Holding:
    """One holder.

    Attributes:
        nbytes: what it asked for.
        ranges: its place; two while it changes from one to the other, none before it asks.
        bound: its graph was told the range, which therefore stays.
        changing: a new place comes beside the former one; see `Pool.changing`.
        leases: how many it has now.
        busy_ns: how long it had one.
    """

    nbytes: int = 0
    ranges: tuple[Range, ...] = ()
    bound: bool = False
    changing: bool = False
    leases: int = 0
    busy_ns: int = 0

    @property
    def place(self) -> Range:
        """The newest of its ranges."""
        return self.ranges[-1] if self.ranges else Range(offset=0, nbytes=0)


@dataclass(frozen=True, slots=True)
class PoolWorkspace:
    """A holder's side of the pool, for its graph: a `Workspace`."""

    pool: Pool
    holder: str

    def place(self, nbytes: int) -> Range:
        """Return a range of the pool for good; see `Workspace.place`."""
        return self.pool.place(self.holder, nbytes, bound=True)


class Pool:
    """Ranges and leases of one device; safe to use from several threads.

    Args:
        size_bytes: of the memory that was set aside; 0: nothing is shared and no run waits.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._holdings: dict[str, _Holding] = {}
        self._leases: set[Lease] = set()
        self._leased_bytes = 0
        self._peak_bytes = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for `place`, which may wait for leases

    def workspace(self, holder: str) -> PoolWorkspace:
        """Let a holder in, without a place yet; pair with `remove`."""
        with self._lock:
            if holder in self._holdings:
                raise ProtocolError(f"{holder} is in the workspace pool already")
            self._holdings[holder] = _Holding()
        return PoolWorkspace(self, holder)

    def remove(self, holder: str) -> None:
        """Give a holder's place back; a lease that it still has runs on to its end."""
        with self._lock:
            self._holding(holder)
            del self._holdings[holder]
            if self.size_bytes:
                self._plan_again()

    def place(self, holder: str, nbytes: int, *, bound: bool) -> Range:
        """Return a place of at least `nbytes`, and give the holder's former one back.

        Args:
            holder: let in before.
            nbytes: of its largest run; a place that is large enough stays.
            bound: the range is for good, or with no bytes the word that none are needed. Else it
                is moved when others come and go, and that of a holder that is bound stays.

        Raises:
            OutOfMemory: the pool is smaller; nothing has changed then.
        """
        with self._lock:
            holding = self._holding(holder)
            if holding.bound and not bound:
                return holding.place
            if not self.size_bytes:
                holding.nbytes = max(holding.nbytes, nbytes)
                return Range(offset=0, nbytes=nbytes)
            if nbytes > self.size_bytes:
                raise self._too_large(holder, nbytes)
            holding.bound = bound
            if nbytes > holding.nbytes:
                holding.nbytes = nbytes
                holding.ranges = holding.ranges[:1] if holding.changing else ()
                plan = self._plan_again(self._need(holder, holding))
                holding.ranges += (plan.ranges[holder],)
                if holding.changing:
                    self._changed.wait_for(lambda: self._all_hold(holder, holding.ranges))
            return holding.place

    @contextlib.contextmanager
    def changing(self, holder: str) -> Iterator[None]:
        """While a graph is built anew for a larger place, let its runs hold both.

        It is not known which of the two a run will use that begins meanwhile. `place` waits within
        it until all runs hold both; so it must not be called by one that has a lease itself.
        """
        with self._lock:
            holding = self._holding(holder)
            former = holding.nbytes, holding.ranges
            holding.changing = True
        try:
            yield
        except BaseException:
            with self._lock:
                holding.nbytes, holding.ranges = former
            raise
        finally:
            with self._lock:
                holding.changing = False
                holding.ranges = holding.ranges[-1:]

    def lease(self, holder: str, nbytes: int = 0, claimed: Sequence[Range] = ()) -> Lease | None:
        """Return the use of a holder's bytes for one run, or None where they are not free.

        Args:
            holder: let in before. Without a place, and with no `nbytes`, it gets no bytes.
            nbytes: what this run takes, where that is less or more than its place; only the engine
                of a measured holder can choose.
            claimed: ranges that others have waited for longer.
        """
        with self._lock:
            holding = self._holding(holder)
            ranges = self._free(holding, self._wanted(holding, nbytes), claimed)
            if ranges is None:
                return None
            lease = Lease(holder, ranges, time.monotonic_ns())
            holding.leases += 1
            self._leases.add(lease)
            self._leased_bytes += _covered(ranges)
            self._peak_bytes = max(self._peak_bytes, self._leased_bytes)
            return lease

    def claim(self, holder: str, nbytes: int = 0) -> tuple[Range, ...]:
        """Return the ranges for which this run waits, so that no later one takes them."""
        with self._lock:
            return self._wanted(self._holding(holder), nbytes)

    def release(self, lease: Lease) -> None:
        """Give the bytes back.

        Raises:
            ProtocolError: that was done before.
        """
        with self._lock:
            if lease not in self._leases:
                raise ProtocolError(f"a lease of {lease.holder} was released twice")
            self._leases.remove(lease)
            self._leased_bytes -= _covered(lease.ranges)
            if (holding := self._holdings.get(lease.holder)) is not None:
                holding.leases -= 1
                holding.busy_ns += time.monotonic_ns() - lease.begun_ns
            if any(holding.changing for holding in self._holdings.values()):
                self._changed.notify_all()

    def figures(self) -> PoolFigures:
        """Return the pool in numbers."""
        with self._lock:
            places = [place for held in self._holdings.values() for place in held.ranges]
            gaps = free_gaps(places, self.size_bytes)
            return PoolFigures(
                size_bytes=self.size_bytes,
                placed_bytes=self.size_bytes - sum(gap.nbytes for gap in gaps),
                leased_bytes=self._leased_bytes,
                peak_bytes=self._peak_bytes,
                holders={name: holding.nbytes for name, holding in self._holdings.items()},
            )

    def integrity(self) -> list[str]:
        """Recount ranges and leases; return what does not agree, with both numbers."""
        with self._lock:
            return [*self._misplaced(), *self._miscounted(), *self._double()]

    def _holding(self, holder: str) -> _Holding:
        if holder not in self._holdings:
            raise ProtocolError(f"{holder} is not in the workspace pool")
        return self._holdings[holder]

    def _wanted(self, holding: _Holding, nbytes: int) -> tuple[Range, ...]:
        """Return where a run of this holder belongs: its place, or as much there as it takes."""
        if holding.bound or not self.size_bytes:
            return holding.ranges
        needed = min(nbytes or holding.nbytes, self.size_bytes)
        if not needed:
            return ()
        offset = min(holding.place.offset, self.size_bytes - needed)
        return (Range(offset=offset, nbytes=needed),)

    def _free(
        self, holding: _Holding, ranges: tuple[Range, ...], claimed: Sequence[Range]
    ) -> tuple[Range, ...] | None:
        """Return what a run may have of what it wants, or instead of it; None where it waits."""
        taken = [*claimed, *(held for lease in self._leases for held in lease.ranges)]
        if not any(held.overlaps(one) for one in ranges for held in taken):
            return ranges
        if holding.bound:
            return None
        needed = ranges[0].nbytes
        gaps = [gap for gap in free_gaps(taken, self.size_bytes) if gap.nbytes >= needed]
        if not gaps:
            return None
        tightest = min(gaps, key=lambda gap: gap.nbytes)
        return (Range(offset=tightest.offset, nbytes=needed),)

    def _plan_again(self, *needs: Need) -> MemoryPlan:
        """Plan for the holders and these needs; move those that are unused and unbound."""
        plan = plan_memory([*self._kept(), *needs], self.size_bytes)
        for holder, holding in self._holdings.items():
            if holding.ranges and _is_movable(holding):
                holding.ranges = (plan.ranges[holder],)
        return plan

    def _kept(self) -> list[Need]:
        """Return the needs of those that have a place, and where each has to stay."""
        needs: list[Need] = []
        for holder, holding in self._holdings.items():
            movable = _is_movable(holding)
            for index, place in enumerate(holding.ranges):
                name = f"{holder} ({index})" if holding.changing else holder
                needs.append(self._need(name, holding, None if movable else place))
        return needs

    def _need(self, name: str, holding: _Holding, fixed: Range | None = None) -> Need:
        weight = (holding.busy_ns + PRIOR_NS) / 1e9
        return Need(holder=name, nbytes=holding.nbytes, weight=weight, fixed=fixed)

    def _all_hold(self, holder: str, ranges: tuple[Range, ...]) -> bool:
        return all(lease.ranges == ranges for lease in self._leases if lease.holder == holder)

    def _too_large(self, holder: str, nbytes: int) -> OutOfMemory:
        held = ", ".join(
            f"{n} {format_bytes(h.nbytes)}" for n, h in self._holdings.items() if h.nbytes
        )
        return OutOfMemory(
            f"{holder} needs {format_bytes(nbytes)} of workspace, {nbytes - self.size_bytes} bytes "
            f"more than the pool's {format_bytes(self.size_bytes)} (held by {held or 'nobody'}); "
            "make the pool larger (GE_WORKSPACE_POOL) or the model's largest bucket smaller"
        )

    def _misplaced(self) -> Iterator[str]:
        for holder, holding in self._holdings.items():
            for place in holding.ranges:
                if place.end > self.size_bytes:
                    yield f"{holder} lies up to {place.end}, the pool ends at {self.size_bytes}"
            if holding.ranges and holding.place.nbytes < holding.nbytes:
                has = holding.place.nbytes
                yield f"{holder} has a place of {has} bytes, it asked for {holding.nbytes}"

    def _miscounted(self) -> Iterator[str]:
        found = Counter(lease.holder for lease in self._leases)
        for holder, holding in self._holdings.items():
            if found[holder] != holding.leases:
                yield f"{holder} has {found[holder]} leases, {holding.leases} are counted"
        leased = sum(_covered(lease.ranges) for lease in self._leases)
        if leased != self._leased_bytes:
            yield f"the leases hold {leased} bytes, {self._leased_bytes} are counted"

    def _double(self) -> Iterator[str]:
        for first, second in combinations(self._leases, 2):
            for one, other in product(first.ranges, second.ranges):
                if one.overlaps(other):
                    yield f"{first.holder} uses {one} while {second.holder} uses {other}"


def _is_movable(holding: _Holding) -> bool:
    return not (holding.bound or holding.changing or holding.leases)


def _covered(ranges: tuple[Range, ...]) -> int:
    """Return the bytes in at least one of the ranges."""
    if len(ranges) == 1:
        return ranges[0].nbytes
    end = max((held.end for held in ranges), default=0)
    return end - sum(gap.nbytes for gap in free_gaps(ranges, end))
