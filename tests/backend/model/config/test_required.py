"""What a block must say is read, or its absence is explained."""

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.config.required import required


def test_what_a_block_says_is_returned():
    """As a text."""
    assert required({"name": "x"}, "name", "an input") == "x"


@pytest.mark.parametrize("block", [{"dims": ["4"]}, {"dims": ["4"], "name": ""}])
def test_what_is_missing_is_named_with_what_is_there(block):
    """So that the block is found among others."""
    with pytest.raises(ConfigError, match=r"an input has no name; add it beside .*'dims': \['4'\]"):
        required(block, "name", "an input")
    with pytest.raises(ConfigError, match=r"an input has no name; add it beside nothing"):
        required({}, "name", "an input")
