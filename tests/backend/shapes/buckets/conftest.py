"""The reference's bucket lists."""

import json
from pathlib import Path

import pytest

FILE = Path(__file__).parent / "golden" / "bucketing.json"


@pytest.fixture(scope="session")
def golden():
    """Return a function that gives the reference cases of a kind; never none."""
    cases = json.loads(FILE.read_text())["cases"]

    def select(kind):
        selected = [case for case in cases if case["strategy"] == kind]
        assert selected, f"no reference cases of {kind}"
        return selected

    return select
