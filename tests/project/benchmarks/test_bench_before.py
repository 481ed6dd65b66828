"""One system of this tree and of an earlier one, side by side."""

from benchmarks.bench_before import SCENARIOS, sides
from benchmarks.harness.report import ROOT
from benchmarks.harness.servers import entry
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


def test_an_earlier_tree_is_served_by_its_own_command(tmp_path):
    """Where it lay before the tools had a root of their own, too."""
    assert "from ge_tools.main import main;" in entry(ROOT)
    (tmp_path / "pyproject.toml").write_text(
        '[project.scripts]\nge-backend = "ge_backend.cli.main:main"\n'
    )
    assert "from ge_backend.cli.main import main; sys.exit(main())" in entry(tmp_path)
