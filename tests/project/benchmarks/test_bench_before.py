"""One system of this tree and of an earlier one, side by side."""

from benchmarks.bench_before import SCENARIOS, sides
from benchmarks.harness.turns import System


def test_the_earlier_one_is_the_rival():
    """Both are the same model, each on its own server."""
    running = {
        name: System(name="ge", model="ge", ours=True, address=address)
        for name, address in (("before", "a:1"), ("after", "b:2"))
    }
    before, after = sides(running)
    assert (before.name, before.ours, before.address) == ("before", False, "a:1")
    assert (after.name, after.ours, after.model) == ("after", True, "ge")


def test_every_comparison_of_the_house_can_be_made():
    """An encoder, sequences, a fused ensemble."""
    assert set(SCENARIOS) == {"encoder", "sequences", "fused"}
