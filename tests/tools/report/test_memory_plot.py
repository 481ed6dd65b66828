import builtins

import pytest

from ge_backend.errors import ConfigError, DeviceUnavailable
from ge_tools.model.demand import Demand
from ge_tools.report.memory import Repository, plan_devices
from ge_tools.report.memory_plot import write_memory_plot

MIB = 1 << 20


def repository(workspaces, *, pool, devices=("cpu",), io=1, memory=1000):
    demands = [
        Demand(
            model=f"m{number}",
            devices=devices,
            weights_bytes=number * MIB,
            io_bytes=None if io is None else io * MIB,
            workspace_bytes=int(nbytes * MIB),
            run_ns=1000,
            memory_bytes=memory * MIB,
        )
        for number, nbytes in enumerate(workspaces)
    ]
    pools = dict.fromkeys(devices, pool * MIB)
    return Repository(devices=plan_devices(demands, pools), broken={}, left_out=())


def size_of(path):
    header = path.read_bytes()[16:24]
    return int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")


@pytest.fixture
def picture(tmp_path):
    pytest.importorskip("matplotlib")
    return tmp_path / "plan.png"


@pytest.mark.parametrize(
    "given",
    [
        repository([8, 6, 2.5], pool=12),
        repository([8, 14], pool=12, memory=3),
        repository([8, 0, 3], pool=0, io=None),
        repository([0], pool=12, io=None),
        repository([0], pool=0, io=0, memory=0),
        repository([1] * 40, pool=3),
    ],
    ids=["overlaps", "does not fit", "no pool", "not known", "nothing", "many"],
)
def test_every_kind_of_plan_can_be_drawn(picture, given):
    """A PNG of its own height."""
    write_memory_plot(picture, given)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_each_device_and_each_model_has_its_room(picture):
    """The picture grows with both."""
    heights = []
    for workspaces, devices in (([1], ("cpu",)), ([1], ("a", "b")), ([1] * 12, ("cpu",))):
        write_memory_plot(picture, repository(workspaces, pool=4, devices=devices))
        heights.append(size_of(picture)[1])
    assert heights[0] < heights[1] < 2 * heights[0]
    assert heights[2] > 2 * heights[0]


def test_bars_lie_where_the_plan_says(picture, monkeypatch):
    """The own range, and what is shared upon it."""
    from matplotlib.axes import Axes

    drawn = []
    monkeypatch.setattr(
        Axes,
        "barh",
        lambda axes, line, width, height, left, color: drawn.append(
            (line, left, left + width, color)
        ),
    )
    given = repository([8, 6], pool=12)
    write_memory_plot(picture, given)
    ranges = given.devices[0].plan.ranges
    for line, model in enumerate(("m0", "m1")):
        place = ranges[model]
        assert (line, place.offset / MIB, place.end / MIB, "#0072B2") in drawn
    shared = [bar[1:3] for bar in drawn if bar[3] == "#E69F00"]
    begin = max(place.offset for place in ranges.values()) / MIB
    end = min(place.end for place in ranges.values()) / MIB
    assert shared == [(begin, end)] * 2


def test_what_is_too_large_is_drawn_beyond_the_pool(picture, monkeypatch):
    """In the colour of what is missing."""
    from matplotlib.axes import Axes

    drawn = []
    monkeypatch.setattr(
        Axes,
        "barh",
        lambda axes, line, width, height, left, color: drawn.append((left, left + width, color)),
    )
    write_memory_plot(picture, repository([14], pool=12))
    assert (12, 14, "#D55E00") in drawn


def test_nothing_to_draw(picture):
    """All models are broken."""
    with pytest.raises(ConfigError, match="no model could be loaded"):
        write_memory_plot(picture, Repository(devices=(), broken={"m": "no"}, left_out=()))


def test_a_folder_that_is_not_there(picture):
    """The error names the file."""
    with pytest.raises(ConfigError, match="cannot be written"):
        write_memory_plot(picture.parent / "none" / "p.png", repository([1], pool=2))


def test_without_matplotlib(tmp_path, monkeypatch):
    """The error says what installs it."""
    real = builtins.__import__

    def fake(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError("no matplotlib")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(DeviceUnavailable, match=r"triton-ge-backend\[tools\]"):
        write_memory_plot(tmp_path / "p.png", repository([1], pool=2))
