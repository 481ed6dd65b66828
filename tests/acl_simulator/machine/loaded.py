"""A loaded model: its file, its context, its memory, and the gear that was set."""

from dataclasses import dataclass, field

from acl_simulator.machine.address_space import Block
from acl_simulator.machine.devices import Context
from acl_simulator.machine.hazards import Access
from acl_simulator.om_file import Om
from acl_simulator.shapes import Dims

__all__ = ["LoadedModel"]


@dataclass(slots=True, eq=False, kw_only=True)
class LoadedModel:
    """One loaded model.

    Attributes:
        work, weights: addresses; 0 for none.
        holds: its memory: work (writing) and weights (reading), as others must respect it.
        blocks: what the runtime allocated for it.
        gear: what was set last; None: the largest runs.
        asynchronous: how it was run first, and is run from then on; None before.
        priority: of its runs, 0 (the first) to 7.
        bundle: the bundle that it came with, 0 for none.
    """

    number: int
    om: Om
    context: Context
    work: int
    weights: int
    holds: list[Access]
    blocks: list[Block] = field(default_factory=list)
    gear: Dims | None = None
    asynchronous: bool | None = None
    priority: int = 0
    bundle: int = 0

    def __str__(self) -> str:
        return f"{self.om.name} ({self.number})"

    def whole(self, *, writes: bool = True) -> Access:
        """Return the use of the model itself, which one run at a time may have."""
        space = ("model", self.number)
        return Access(start=0, stop=1, writes=writes, what=f"model {self}", space=space)
