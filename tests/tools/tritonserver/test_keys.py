"""Each group of a server's paths has a header of its own, and its key is shown to that alone."""

import pytest

from ge_tools.tritonserver.keys import HTTP_RESTRICTED, opening, restrictions


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("/v2", "metadata"),
        ("/v2/health/live", "health"),
        ("/v2/health/ready", "health"),
        ("/v2/models/stats", "statistics"),
        ("/v2/models/m/config", "model-config"),
        ("/v2/repository/index", "model-repository"),
        ("/v2/repository/models/m/load", "model-repository"),
    ],
)
def test_a_path_is_opened_by_the_header_of_its_group(path, group):
    """The groups may have one header with a key for each, of which a request can show one."""
    arguments = [f"{HTTP_RESTRICTED}={name}:door={name}" for name in ("health", "inference", group)]
    assert opening(path, restrictions(arguments, HTTP_RESTRICTED)) == {"door": group}


def test_a_path_that_is_open_is_shown_no_key():
    """That of loads would be seen by whatever else listens there."""
    keys = restrictions([f"{HTTP_RESTRICTED}=model-repository:door=1"], HTTP_RESTRICTED)
    assert opening("/v2/health/live", keys) == {}


def test_restrictions_are_read_as_the_server_reads_them():
    """In one word or two, shortened, and of several groups at once."""
    arguments = ["-x", "--http-restricted", "health,trace:a=1=2", "--http-re=logging:b=3", "--more"]
    assert restrictions(arguments, HTTP_RESTRICTED) == {
        "health": ("a", "1=2"),
        "trace": ("a", "1=2"),
        "logging": ("b", "3"),
    }
