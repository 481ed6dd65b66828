"""The lock lets one at a time at an address, and the folder around it is ours alone."""

import os
import stat
import threading
import time

import pytest

from builders.null_models import comes_true, num_descriptors
from ge_backend.errors import ConfigError
from ge_backend.executor.process import lock as lock_module
from ge_backend.executor.process.lock import address_lock, lock_path, make_private, remove_lock


@pytest.fixture
def address(tmp_path):
    return tmp_path / "run" / "cpu.sock"


def test_the_folder_is_made_for_this_user_alone(address):
    """A new folder has mode 0700, whatever the umask allows."""
    before = os.umask(0)
    try:
        make_private(address.parent)
    finally:
        os.umask(before)
    assert stat.S_IMODE(address.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(address, mode):
    """Whoever may write into the folder could put a socket there."""
    address.parent.mkdir()
    address.parent.chmod(mode)
    with pytest.raises(ConfigError, match="GE_RUNTIME_DIR"):
        make_private(address.parent)


def test_a_folder_that_others_can_only_read_is_used(address):
    """Reading does no harm: the socket checks who comes."""
    address.parent.mkdir()
    address.parent.chmod(0o755)
    make_private(address.parent)


def test_a_folder_of_another_user_is_refused(address, monkeypatch):
    """A folder that someone else made at a name that can be guessed is not used."""
    address.parent.mkdir(mode=0o700)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(ConfigError, match=f"user {uid + 1}"):
        make_private(address.parent)


def test_a_link_to_a_folder_is_refused(address, tmp_path):
    """A link could be turned to another folder between check and use."""
    (tmp_path / "real").mkdir(mode=0o700)
    address.parent.symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError):
        make_private(address.parent)


def test_a_folder_that_cannot_be_made_is_a_configuration_error(tmp_path):
    """A file in the way is named, with what to change."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="GE_RUNTIME_DIR"):
            make_private(folder)


def test_only_one_holds_the_lock(address):
    """The second waits until the first has let go."""
    order = []

    def second():
        with address_lock(address):
            order.append("second")

    thread = threading.Thread(target=second)
    with address_lock(address):
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_lock_can_be_tried_without_waiting(address):
    """Without waiting, a lock that is held is an error, and one that is free is held."""
    with (
        address_lock(address),
        pytest.raises(BlockingIOError),
        address_lock(address, wait=False),
    ):
        pass
    with address_lock(address, wait=False):
        assert lock_path(address).exists()


def test_an_inherited_descriptor_keeps_the_lock(address):
    """The lock is free only when every copy of its descriptor is closed."""
    with address_lock(address) as descriptor:
        copy = os.dup(descriptor)
    with pytest.raises(BlockingIOError), address_lock(address, wait=False):
        pass
    os.close(copy)
    with address_lock(address, wait=False):
        pass


def test_who_waited_for_a_lock_that_was_removed_locks_the_new_file(address):
    """Retiring removes file and folder; whoever waited does not believe the removed file."""
    inside, most, files = [], [], []

    def hold():
        with address_lock(address):
            inside.append(1)
            most.append(len(inside))
            files.append(lock_path(address).exists())
            time.sleep(0.01)
            inside.pop()
            remove_lock(address)  # from here on another may lock a new file

    threads = [threading.Thread(target=hold) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 10
    assert files == [True] * 10
    assert not address.parent.exists()


def test_a_folder_that_vanishes_in_between_is_made_again(address, monkeypatch):
    """Between making the folder and opening the lock a retiring executor may remove the folder."""
    real, calls = lock_module.make_private, []

    def vanishing(folder):
        real(folder)
        calls.append(folder)
        if len(calls) < 3:
            folder.rmdir()

    monkeypatch.setattr(lock_module, "make_private", vanishing)
    with address_lock(address):
        assert len(calls) == 3


def test_no_descriptor_stays_open(address):
    """Holding, trying and failing to get the lock leaves no descriptor behind."""
    before = num_descriptors()
    for _ in range(20):
        with (
            address_lock(address),
            pytest.raises(BlockingIOError),
            address_lock(address, wait=False),
        ):
            pass
    assert comes_true(lambda: num_descriptors() <= before)
