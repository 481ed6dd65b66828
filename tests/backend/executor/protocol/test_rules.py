"""A rule lets through what can be computed with, and nothing else."""

import pytest

from ge_backend.executor.protocol.rules import MAX_NUMBER, Rule


def test_a_rule_without_bounds_takes_everything_that_fits():
    """The usual rule lets names, sizes and moments pass."""
    rule = Rule()
    rule.check_number(0)
    rule.check_number(MAX_NUMBER)
    rule.check_numbers((1,) * 100)
    rule.check_text("Grüße")
    rule.check_real(float("inf"))


@pytest.mark.parametrize("value", [-1, 4])
def test_numbers_out_of_bounds_are_named(value):
    """The error says what was expected and what came."""
    with pytest.raises(ValueError, match=f"expected 0 to 3, got {value}"):
        Rule(most=3).check_number(value)
