"""One pair of torch and torch_npu, and one CANN, wherever a version of them is said."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RECOMMENDED = {"torch": "2.12.0", "torch_npu": "2.12.0"}
CANN = "9.1.0"


def read(name):
    return (ROOT / name).read_text()


def test_the_constraints_name_the_pair():
    """It is the one that Ascend recommends; the other constraints say nothing of torch_npu."""
    pins = re.findall(r"^(\w+)==([\d.]+)$", read("constraints-npu.txt"), re.MULTILINE)
    assert dict(pins) == RECOMMENDED
    assert "torch_npu" not in read("constraints.txt")


def test_the_extra_takes_the_pair_and_nothing_that_no_cann_is_for():
    """From torch 2.7.1, whose names are tested, up to the last one in Ascend's table."""
    (extra,) = re.findall(r"^npu = (.*)$", read("pyproject.toml"), re.MULTILINE)
    for name in RECOMMENDED:
        assert f'"{name}>=2.7.1,<2.13"' in extra


def test_the_image_has_the_cann_of_the_pair():
    """It installs the extra by these constraints on the CANN that belongs to them."""
    text = read("deploy/Dockerfile")
    assert re.search(rf"^ARG CANN_IMAGE=\S+/cann:{re.escape(CANN)}-910b-", text, re.MULTILINE)
    assert "-c /src/constraints-npu.txt '/src[npu]'" in text
    assert "grep -vE '^(torch|setuptools)=='" in text  # torch 2.12 wants setuptools below 82


def test_the_docs_have_the_pair_in_their_table():
    """The recommended row is the first one."""
    _, head, table = read("docs/devices.md").partition("| torch_npu | torch | CANN |")
    assert head
    rows = re.findall(r"^\| ([\d.post, ]+) \| ([\d.]+) \| ([\w.]+) \|", table, re.MULTILINE)
    assert rows[0] == (RECOMMENDED["torch_npu"], RECOMMENDED["torch"], CANN)
    assert len(rows) > 5


def test_the_wheels_that_are_read_are_those_that_can_be_fetched():
    """`make wheels` and the test of names have one list, which has the recommended version."""
    (listed,) = re.findall(r"^NPU_VERSIONS := (.*)$", read("Makefile"), re.MULTILINE)
    (tested,) = re.findall(
        r"^VERSIONS = \((.*)\)$", read("tests/backend/engines/torch/test_npu.py"), re.MULTILINE
    )
    assert listed.split() == re.findall(r'"([\d.]+)"', tested)
    assert RECOMMENDED["torch_npu"] in listed.split()
