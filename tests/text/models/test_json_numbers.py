"""Numbers of a schema that its compiler would round."""

import json

import jsonschema
import llguidance
import pytest

from ge_text.models.json_numbers import BOUNDS, lost_number, with_kept_bounds

KEY = 1234567890123456789
BYTES = llguidance.LLTokenizer("byte")


def allows(schema, text):
    """Whether the compiler lets a text through to its end."""
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    matcher = llguidance.LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error()
    tokens = BYTES.tokenize_str(text)
    whole = matcher.validate_tokens(tokens) == len(tokens)
    return whole and matcher.consume_tokens(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("keyword", BOUNDS)
@pytest.mark.parametrize("bound", [2**53 + 1, 2**53 + 4097, KEY, 2**62 + 1, 2**63 - 1, 2**63])
def test_no_number_beyond_a_large_bound_is_allowed(kind, keyword, bound):
    """Around it, and one that is well within it is allowed."""
    side = BOUNDS[keyword]
    schema = {"type": kind, keyword: side * bound}
    right, made = jsonschema.Draft202012Validator(schema), with_kept_bounds(schema)
    numbers = [side * (bound + by) for by in (-2048, -1024, -1, 0, 1, 2, 1024, 2048)]
    assert [n for n in numbers if allows(made, str(n)) and not right.is_valid(n)] == []
    assert allows(made, str(side * (bound - 4097)))


def test_bounds_that_are_kept_stay_as_they_are():
    """Up to the integers that FP64 has all of; what is no number is left to the compiler."""
    schema = {
        "minimum": -(2**53),
        "maximum": 2**53,
        "exclusiveMinimum": 0.5,
        "exclusiveMaximum": "9",
    }
    assert with_kept_bounds(schema) == schema
    assert with_kept_bounds({"maximum": 1e300, "minimum": -(10**30)}) == {
        "maximum": 2**63 - 2048,
        "minimum": 2048 - 2**63,
    }


@pytest.mark.parametrize(
    ("schema", "lost"),
    [
        ({"const": KEY}, ("const", KEY)),
        ({"enum": ["a", {"b": [1, -KEY]}]}, ("enum", -KEY)),
        ({"multipleOf": 2**53 + 1}, ("multipleOf", 2**53 + 1)),
        ({"const": 10**400}, ("const", 10**400)),
        ({"const": 2**60, "enum": [1.5, True, "1234567890123456789", 2**53]}, None),
        ({"default": KEY, "examples": [KEY]}, None),
    ],
)
def test_a_value_that_would_be_rounded_is_found(schema, lost):
    """An integer of a value that FP64 lacks."""
    assert lost_number(schema) == lost
