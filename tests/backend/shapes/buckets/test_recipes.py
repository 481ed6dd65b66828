import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets.recipes import RULES, make_recipe, parse_recipe, rule_named


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("exponential(1, 2, 32, 6)", (1, 2, 4, 8, 12, 20, 32)),
        ("exponential(min=1, step=2, max=32, limit=6)", (1, 2, 4, 8, 12, 20, 32)),
        ("exponential(1, 2, max=32)", (1, 2, 4, 8, 12, 20, 32)),
        (" exponential ( 1 ,1, 32,6, compat = true ) ", (1, 2, 4, 9, 17, 32)),
        ("exponential(1, 1, 32, 6, compat=false)", (1, 2, 4, 8, 16, 32)),
        ("exponential_fill(2, 2, 61, 4)", (2, 8, 20, 62)),
        ("exponential_fill(2, 2, 61, 4, contiguous=true)", (2, 8, 20, 61)),
        ("linear(1, 32, 100)", (1, 2, 4, 8, 16, 32, 64, 96)),
        ("padding_aware(0, 8, 64, 16, 50)", (0, 1, 2, 4, 8, 16, 32, 48, 64)),
        ("unified(0, 64, 8)", (0, 8, 16, 32, 48, 64)),
    ],
)
def test_calls(text, values):
    """Numbers may be given in order, by name, or both, with defaults for the rest."""
    assert parse_recipe(text).values() == values


def test_lists():
    """Text without a rule is a list of numbers, as they are."""
    assert parse_recipe("16, 8,32") == (16, 8, 32)
    assert parse_recipe("7") == (7,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no whole number"),
        ("1,,2", "no whole number"),
        ("1.5", "no whole number"),
        ("9" * 30, "no whole number"),
        ("cubic(1)", "'cubic' is unknown; known are exponential, exponential_fill, linear"),
        ("linear(1, 2", "no whole number"),
        ("linear()", "needs min, step, max; such as linear"),
        ("exponential(1, 2)", "needs max; such as"),
        ("linear(1, 2, 3, 4)", "'4' is one too many"),
        ("linear(min=1, 2, 3)", "'2' needs a name too"),
        ("linear(1, min=2, max=3)", "'min' is given twice"),
        ("linear(1, 2, 3, compat=true)", "linear does not take 'compat'; it takes min, step, max"),
        ("linear(1, b, 3)", "'b' is no whole number; expected a number for step"),
        ("exponential(1, 1, 8, compat=1)", "compat is '1', expected true or false"),
    ],
)
def test_text_that_is_neither_is_explained(text, said):
    """An error quotes what cannot be used and says what was expected."""
    with pytest.raises(ConfigError, match=said):
        parse_recipe(text)


@given(data=st.data(), rule=st.sampled_from(RULES))
def test_a_recipe_prints_as_it_parses(data, rule):
    """The text of a recipe, as it stands in the log, makes the same recipe again."""
    least = data.draw(st.integers(1, 64))
    drawn = {name: data.draw(st.integers(1, 50)) for name in rule.numbers}
    numbers = {**drawn, "min": least, "max": least + data.draw(st.integers(0, 500))}
    switches = tuple(name for name in rule.switches if data.draw(st.booleans()))
    recipe = make_recipe(rule, numbers, switches)
    assert parse_recipe(str(recipe)) == recipe
    assert parse_recipe(str(recipe)).values() == recipe.values()


def test_numbers_have_names():
    """A recipe's numbers can be asked for by name."""
    recipe = make_recipe(rule_named("padding_aware"), {"min": 1, "step": 8, "max": 64})
    assert [recipe.number(name) for name in recipe.rule.numbers] == [1, 8, 64, 0, 25]
