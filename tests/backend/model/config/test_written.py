"""A 0 that is written is told from one that is not."""

import pytest

from ge_backend.model.config.written import sets_max_batch_size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backend: "ge" max_batch_size: 0', True),
        ("max_batch_size:0\n", True),
        ('backend: "ge"', False),
        ('backend: "ge" # max_batch_size: 0', False),
        ("""name: "a\\" max_batch_size: 0" backend: 'max_batch_size'""", False),
    ],
    ids=["said", "without spaces", "unsaid", "comment", "texts"],
)
def test_the_field_is_found_where_it_is_one(text, said):
    """And not in a comment, nor in a text."""
    assert sets_max_batch_size(text) is said
