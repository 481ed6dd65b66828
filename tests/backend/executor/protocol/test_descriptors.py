"""Memory that two processes map, and the descriptors that it comes by."""

import errno
import mmap
import os

import pytest

from builders.null_models import num_descriptors
from ge_backend.errors import OutOfMemory
from ge_backend.executor.protocol.descriptors import close_all, created, duplicate, mapped


def test_what_is_created_is_mapped_by_its_descriptor():
    """It begins as zeros, is the same memory on both sides, and stays while one has it mapped."""
    memory, descriptor = created("test", mmap.PAGESIZE)
    assert not os.get_inheritable(descriptor)
    seen = mapped(descriptor, mmap.PAGESIZE, mmap.ACCESS_READ)
    close_all([descriptor])
    assert seen[:] == bytes(mmap.PAGESIZE)
    memory[:4] = b"here"
    assert seen[:4] == b"here"
    with pytest.raises(TypeError):
        seen[:4] = b"read"


@pytest.mark.parametrize("nbytes", [1 << 62, 1 << 70, -1, 0])
def test_memory_that_cannot_be_had_is_told_with_its_size(nbytes):
    """And no descriptor stays open."""
    before = num_descriptors()
    with pytest.raises(OutOfMemory, match=f"cannot map {nbytes} bytes of shared memory"):
        created("test", nbytes)
    assert num_descriptors() <= before


def test_what_cannot_be_mapped_stays_its_owners():
    """Here a descriptor of no memory."""
    descriptor = os.open("/", os.O_RDONLY)
    with pytest.raises(OutOfMemory, match="cannot map 64 bytes of shared memory"):
        mapped(descriptor, 64)
    os.close(descriptor)


def test_all_descriptors_are_closed():
    """Whatever holds them; none is none."""
    descriptors = [os.dup(0) for _ in range(3)]
    close_all(tuple(descriptors))
    close_all(())
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_process_that_may_have_no_more_descriptors_says_so(monkeypatch):
    """As what may be better later, not as an error that nobody foresaw."""
    _, descriptor = created("test", mmap.PAGESIZE)
    same = duplicate(descriptor)
    assert os.path.sameopenfile(descriptor, same)
    close_all([descriptor, same])

    def none_left(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", none_left)
    with pytest.raises(OutOfMemory, match=r"no descriptor is left: .*Too many open files; raise"):
        duplicate(0)
