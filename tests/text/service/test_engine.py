"""A checkpoint's own defaults, as they are looked at when it is loaded."""

from pathlib import Path

import pytest

from ge_backend.errors import ModelError
from ge_text.service.engine import _defaults


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1}, "temperature is -1.0; it has to be from 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it has to be a whole number"),
        ({"top_k": "many"}, "top_k is 'many'; it has to be a whole number"),
    ],
)
def test_an_impossible_default_is_refused_at_load(given, message):
    """With the file that says it; every request without the parameter would fail else."""
    with pytest.raises(ModelError, match=f"generation_config.json: {message}"):
        _defaults(Path("model"), given)


def test_a_possible_one_is_taken():
    """As it is."""
    given = {"temperature": 0.6, "max_new_tokens": 2048}
    assert _defaults(Path("model"), given) == given
