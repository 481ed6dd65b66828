"""Flags are read as the server reads them."""

from ge_tools.tritonserver.flags import values_of


def test_each_value_of_a_flag_is_found():
    """As one word or two, and shortened as far as no other flag is meant; other flags are not."""
    arguments = ["--some-flag=1", "--some-flag", "2", "--some-f=3", "--some=4", "--some-flags=5"]
    assert values_of(arguments, "--some-flag", "--some-f") == ["1", "2", "3"]
    assert values_of(["--some-flag"], "--some-flag", "--some-f") == [""]
    assert values_of([], "--some-flag", "--some-f") == []
