import pytest

from builders.histograms import histogram_of
from ge_backend.serving.learning.tuning import propose
from ge_tools.report.plot import MAX_BARS, write_plot
from ge_tools.report.tuning import Tuning

pytest.importorskip("matplotlib")


def tuning_of(*traffics, measured=False, now=(16, 64)):
    proposals = []
    for counts in traffics:
        proposals.append(propose("length", histogram_of(counts), now, None, float))
    return Tuning(
        model="tiny",
        source="t",
        measured=measured,
        static_shapes=True,
        any_shape=False,
        left_out=0,
        proposals=tuple(proposals),
    )


def height_of(path):
    return int.from_bytes(path.read_bytes()[20:24], "big")


@pytest.mark.parametrize(
    ("counts", "now"),
    [
        ({1: 1}, (1,)),
        ({0: 5}, (1, 2)),
        ({7: 3}, (16,)),
        ({size: size for size in range(1, 400)}, (16, 64)),
        ({1: 1, 2**31 - 1: 1}, (1, 2**31 - 1)),
    ],
)
def test_every_kind_of_traffic_can_be_drawn(tmp_path, counts, now):
    """One size, none at all, thousands, and the largest there are."""
    write_plot(tmp_path / "p.png", tuning_of(counts, now=now))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_each_axis_has_its_row(tmp_path):
    """A second axis makes the picture taller."""
    counts = {20: 5, 40: 1}
    write_plot(tmp_path / "1.png", tuning_of(counts))
    write_plot(tmp_path / "2.png", tuning_of(counts, counts, measured=True))
    assert height_of(tmp_path / "2.png") > 1.8 * height_of(tmp_path / "1.png")


def test_there_are_never_too_many_bars():
    """Wide ranges get wider bars, on a logarithmic axis where sizes differ much."""
    from ge_tools.report.plot import _edges

    for now, logarithmic in (((8, 4096), True), ((1000, 4096), False)):
        (proposal,) = tuning_of({now[0]: 1}, now=now).proposals
        edges, is_logarithmic = _edges(proposal)
        assert is_logarithmic == logarithmic
        assert edges == sorted(set(edges))
        assert edges[0] < now[0]
        assert edges[-1] > now[-1]
        assert len(edges) < MAX_BARS + 50
