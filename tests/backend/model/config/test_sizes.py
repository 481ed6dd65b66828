"""Sizes are read as people write them, and written so that they can be compared."""

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.config.sizes import (
    format_bytes,
    parse_bytes,
    parse_device_bytes,
    size_of_device,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("12GiB", 12 * GIB),
        (" 512 MiB ", 2**29),
        ("1.5KiB", 1536),
        ("100", 100),
        ("100B", 100),
        ("0", 0),
        ("2TiB", 2**41),
    ],
)
def test_sizes_are_numbers_with_or_without_a_unit(text, nbytes):
    """Binary units only: what a device's memory is counted in."""
    assert parse_bytes(text, "GE_X") == nbytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "12GB", "-1GiB", "12 gib", "1e9", "1,5GiB", "12GiB x", "9" * 400 + "GiB"]
)
def test_what_is_not_a_size_is_refused_with_an_example(text):
    """A decimal unit is not guessed to be a binary one."""
    with pytest.raises(ConfigError, match=r"GE_X: .* is not a size; .* such as 12GiB"):
        parse_bytes(text, "GE_X")


def test_each_device_may_have_its_own_size():
    """A device's own entry counts before its kind's, and that before the one for all."""
    sizes = parse_device_bytes("npu:0=12GiB, cuda = 8GiB,2GiB", "GE_X")
    assert sizes == {"npu:0": 12 * GIB, "cuda": 8 * GIB, "": 2 * GIB}
    found = {name: size_of_device(sizes, name) for name in ("npu:0", "npu:1", "cuda:3", "cpu")}
    assert found == {"npu:0": 12 * GIB, "npu:1": 2 * GIB, "cuda:3": 8 * GIB, "cpu": 2 * GIB}


def test_a_device_is_found_by_its_number_however_that_is_written():
    """The first `cpu` is called by the kind alone; its number names it alone all the same."""
    sizes = parse_device_bytes("cpu:0=1GiB, npu:01=2GiB", "GE_X")
    found = {name: size_of_device(sizes, name) for name in ("cpu", "cpu:1", "npu:1")}
    assert found == {"cpu": GIB, "cpu:1": 0, "npu:1": 2 * GIB}
    with pytest.raises(ConfigError, match="'npu:1' is named twice"):
        parse_device_bytes("npu:1=1GiB,npu:01=2GiB", "GE_X")


@pytest.mark.parametrize(
    "device", ["gpu", "CUDA", "cuda:O", "npu;0", "cpu:", "npu:²", "npu:" + "1" * 9999]
)
def test_a_device_that_cannot_be_is_refused(device):
    """A limit for it would hold for nothing: the message names what came and what there is."""
    with pytest.raises(ConfigError) as told:
        parse_device_bytes(f"{device}=1GiB", "GE_X")
    for words in ("GE_X", f"{device!r:.80}", "cpu, cuda, npu, null", "cuda:0"):
        assert words in str(told.value)


def test_a_device_without_an_entry_has_no_limit():
    """Where nothing is said for a device the size is 0."""
    assert size_of_device(parse_device_bytes("", "GE_X"), "cpu") == 0
    assert size_of_device(parse_device_bytes("npu:0=1GiB", "GE_X"), "cpu") == 0


@pytest.mark.parametrize("text", ["cpu=1GiB,cpu=2GiB", "1GiB,2GiB", "=1GiB", "cpu=", "cpu=1GiB=2"])
def test_a_device_is_named_once_and_with_a_size(text):
    """What is ambiguous is refused, not guessed."""
    with pytest.raises(ConfigError, match="GE_X"):
        parse_device_bytes(text, "GE_X")


def test_sizes_are_written_in_the_largest_unit():
    """Whole sizes come back as they were given; others to a precision that shows a difference."""
    texts = [format_bytes(n) for n in (0, 999, 2048, 512 * 2**20, 12 * GIB, 8 * GIB - 2**26)]
    assert texts == ["0 B", "999 B", "2 KiB", "512 MiB", "12 GiB", "7.938 GiB"]
