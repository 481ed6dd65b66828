"""The reference's bucket lists."""

import pytest

from builders.golden import reference_cases


@pytest.fixture(scope="session")
def golden():
    """Return a function that gives the reference cases of some kinds; never none."""
    return reference_cases()
