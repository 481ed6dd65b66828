"""Counting usable cores."""

import os

import pytest

from builders.control_groups import machine
from ge_backend.device.machine.cores import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def test_counts_the_affinity_mask(tmp_path):
    """Without control groups the affinity mask decides."""
    assert usable_cores(tmp_path) == 8


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("200000 100000", 2),
        ("150000 100000", 1),
        ("20000 100000", 1),
        ("max 100000", 8),
        ("9900000 100000", 8),
        ("", 8),
        ("1 0", 8),
        ("nonsense", 8),
    ],
)
def test_a_quota_counts_whole_cores(tmp_path, quota, cores):
    """A quota is rounded down, is at least one core, and adds none; what is no quota is ignored."""
    assert usable_cores(machine(tmp_path, "0::/\n", {"cpu.max": quota})) == cores


def test_an_outer_group_limits_inner_ones(tmp_path):
    """The smallest quota on the way to the root counts."""
    files = {"a/b/cpu.max": "400000 100000", "a/cpu.max": "300000 100000"}
    assert usable_cores(machine(tmp_path, "0::/a/b\n", files)) == 3


def test_version_one_groups_have_files_of_their_own(tmp_path):
    """In version 1 the quota is in `cpu.cfs_quota_us`, -1 meaning none, below `cpu`."""
    files = {
        "cpu/box/cpu.cfs_quota_us": "250000\n",
        "cpu/box/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }
    cgroup = "12:memory:/other\n4:cpu,cpuacct:/box\n0::/\n"
    assert usable_cores(machine(tmp_path, cgroup, files)) == 2


def test_a_group_outside_the_mount_does_no_harm(tmp_path):
    """A path that leads out of the mount, as containers may show, falls back to the mount."""
    files = {"cpu.max": "300000 100000"}
    assert usable_cores(machine(tmp_path, "0::/../../x\n", files)) == 3
