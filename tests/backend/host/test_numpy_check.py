"""A numpy that the host's stub would misread is found out at load."""

import pytest

from ge_backend.errors import ConfigError
from ge_backend.host.numpy_check import check_numpy


@pytest.mark.parametrize(("version", "allow_2"), [("1.26.4", False), ("2.2.6", True)])
def test_known_and_allowed_versions_pass(version, allow_2):
    """Numpy 1 is fine, and numpy 2 where somebody says so."""
    check_numpy(allow_2=allow_2, version=version)


@pytest.mark.parametrize("version", ["2.0.0rc1", "2.5.5", "3.1"])
def test_numpy_2_stops_the_load(version):
    """The error names the version, what to install, and how to allow it."""
    with pytest.raises(ConfigError, match=f"numpy {version}.*'numpy<2'.*GE_NUMPY_2=allow"):
        check_numpy(allow_2=False, version=version)
