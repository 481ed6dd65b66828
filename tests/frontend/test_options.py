"""Options of the API."""

import pytest

from ge_openai.options import FrontError, FrontOptions, read_keys


def test_only_this_machine_may_ask_unless_told_otherwise():
    """An address of a network is somebody's decision."""
    assert FrontOptions(url="x").host == "127.0.0.1"


def test_keys_are_lines(tmp_path):
    """Blank ones are none; a file without any is an error, as nobody could ask."""
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    assert read_keys(file) == ("one", "two")
    assert read_keys(None) == ()
    file.write_text("\n")
    with pytest.raises(FrontError, match="no API key"):
        read_keys(file)
    with pytest.raises(FrontError, match="cannot be read"):
        read_keys(tmp_path / "none")
