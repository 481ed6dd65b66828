"""The reference's bucket lists."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "unit" / "buckets" / "golden" / "bucketing.json"


def reference_cases() -> Callable[..., list[dict[str, Any]]]:
    """Return a function that gives the reference cases of some kinds; never none."""
    cases = json.loads(FILE.read_text())["cases"]

    def select(*kinds: str) -> list[dict[str, Any]]:
        selected = [case for case in cases if case["strategy"] in kinds]
        assert selected, f"no reference cases of {kinds}"
        return selected

    return select
