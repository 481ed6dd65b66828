import stat

import pytest

from ge_backend.errors import ConfigError
from ge_tools.model import applied
from ge_tools.model.applied import INSTANCES, apply_settings

BEFORE = """\
# A model.
backend: "ge"
parameters { key: "buckets.length" value { string_value: "8,32" } }  # guessed
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.pbtxt"
    path.write_text(BEFORE)
    path.chmod(0o640)
    return path


def test_the_file_is_changed_and_the_difference_returned(file):
    """Comments stay, permissions stay, and nothing is left beside the file."""
    diff = apply_settings(file, {"buckets.length": "5,9", "buckets.width": "7"})
    assert file.read_text() == BEFORE.replace("8,32", "5,9") + (
        'parameters { key: "buckets.width" value { string_value: "7" } }\n'
    )
    changed = [line for line in diff.splitlines() if line[:1] in "+-"]
    assert [line[0] for line in changed] == ["-", "+", "-", "+", "+"]
    assert str(file) in changed[0]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("count", ["", "\n  count: 2\n", "\n  kind: KIND_CPU\n", "\n"])
def test_the_ends_of_lines_stay(file, count):
    """Those of Windows in a file from there, also of lines that are new."""
    before = BEFORE + f"instance_group {{{count}}}\n"
    settings = {"buckets.length": "5,9", "buckets.width": "7", INSTANCES: "3"}
    file.write_text(before)
    diff = apply_settings(file, settings)
    expected = file.read_bytes().replace(b"\n", b"\r\n")
    file.write_bytes(before.replace("\n", "\r\n").encode())
    assert apply_settings(file, settings, dry_run=True) == diff
    assert apply_settings(file, settings) == diff
    assert file.read_bytes() == expected


def test_nothing_to_change(file):
    """The file is not touched then."""
    before = file.stat()
    assert apply_settings(file, {"buckets.length": "8,32"}) == ""
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert file.stat().st_ino == before.st_ino


def test_a_link_stays_a_link(file, tmp_path):
    """The file that it points to is what changes."""
    link = tmp_path / "link.pbtxt"
    link.symlink_to(file)
    apply_settings(link, {"buckets.length": "5"})
    assert link.is_symlink()
    assert '"5"' in file.read_text()


def test_an_edit_that_means_something_else_is_refused(file, monkeypatch):
    """The texts are compared as the host reads them before the file is written."""
    monkeypatch.setattr(applied, "set_parameter", lambda text, *_: text + 'name: "other"\n')
    with pytest.raises(ConfigError, match=r"set buckets\.length by hand"):
        apply_settings(file, {"buckets.length": "5"})
    assert file.read_text() == BEFORE


def test_a_file_that_cannot_be_changed(tmp_path):
    """The error names it."""
    with pytest.raises(ConfigError, match=r"config\.pbtxt cannot be changed"):
        apply_settings(tmp_path / "config.pbtxt", {"a": "b"})
