"""That stubs may have come or gone is told without looking at all processes."""

import os
import subprocess
import sys

import pytest

from builders.null_models import comes_true
from ge_tools.tritonserver.stub_changes import StubChanges


@pytest.fixture
def changes(tmp_path):
    changes = StubChanges(tmp_path, "ours_")
    assert changes.any()  # nothing was known before
    yield changes
    changes.close()


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_nothing_has_changed_while_stubs_live(changes, child):
    """However often it is asked."""
    changes.follow([child.pid])
    assert [changes.any() for _ in range(5)] == [False] * 5


def test_an_end_is_told_until_the_stub_is_followed_no_longer(changes, child):
    """Also where none has asked how it ended, as the host does not."""
    changes.follow([child.pid])
    child.kill()
    assert comes_true(changes.any)
    assert changes.any()
    changes.follow([])
    assert not changes.any()


def test_a_region_of_this_server_is_told_once(changes, tmp_path):
    """One that comes, and one that goes; those of others do not count."""
    (tmp_path / "theirs_1").touch()
    assert not changes.any()
    (tmp_path / "ours_1").touch()
    assert [changes.any(), changes.any()] == [True, False]
    (tmp_path / "ours_1").unlink()
    assert [changes.any(), changes.any()] == [True, False]


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), AttributeError()])
def test_where_ends_cannot_be_told_anything_may_have_changed(changes, child, monkeypatch, error):
    """Out of descriptors, or on a kernel without them; and it is well again once there are some."""

    def refuse(_):
        raise error

    with monkeypatch.context() as without:
        without.setattr(os, "pidfd_open", refuse)
        changes.follow([child.pid])
    assert [changes.any(), changes.any()] == [True, True]
    changes.follow([child.pid])
    assert not changes.any()


def test_a_folder_that_is_away_has_no_regions(tmp_path):
    """Ends are told all the same."""
    changes = StubChanges(tmp_path / "none", "ours_")
    assert [changes.any(), changes.any()] == [True, False]
