"""The control groups that a process is in."""

import pytest

from builders.control_groups import machine
from ge_backend.device.machine.control_groups import control_groups, read_text


@pytest.mark.parametrize(
    ("cgroup", "groups"),
    [
        ("0::/a/b\n", ["a/b", "a", ""]),
        ("4:cpu,memory:/box\n3:pids:/other\n", ["memory/box", "memory"]),
        ("0::/../x\n", ["../x", "..", ""]),
        ("", []),
    ],
)
def test_groups_come_from_the_inner_one_outwards(tmp_path, cgroup, groups):
    """Of both versions; other controllers' groups of version 1 are not asked."""
    top = machine(tmp_path, cgroup, {}) / "sys/fs/cgroup"
    assert list(control_groups(tmp_path, "memory")) == [top / group for group in groups]


def test_a_file_that_is_not_there_says_nothing(tmp_path):
    """Most groups have no limits."""
    assert read_text(tmp_path / "memory.max") == ""
