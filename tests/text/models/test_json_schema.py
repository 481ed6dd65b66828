"""JSON schemas as their compiler takes them."""

import json
import re

import pytest

from builders.schemas import lenient
from ge_text.models.json_schema import (
    OPTIONS,
    WHITE,
    left_out,
    mapped,
    prepared,
    prepared_text,
    with_prepared_rules,
)


def test_options_of_the_schema_go_before_ours():
    """As the compiler's own order is."""
    ours = {"whitespace_pattern": WHITE, "coerce_one_of": True}
    assert prepared({"type": "object"}) == {"type": "object", OPTIONS: ours}
    assert prepared(lenient({}))[OPTIONS] == {**ours, "lenient": True}
    theirs = {"lenient": False, "whitespace_pattern": ""}
    assert prepared(lenient({OPTIONS: theirs}))[OPTIONS] == {**ours, **theirs}


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"^[+-]?0*\d*\.?\d*$"),
        ("(?=.*[(])a(?!b(c)d)e", "ae"),
        ("a(?<=a)+b(?<!x){1,2}c", "abc"),
        (r"\(?=a[(?!]", r"\(?=a[(?!]"),
        (r"[^]()\]](?!a)b", r"[^]()\]]b"),
        ("(?:a|b)(?P<n>c)", "(?:a|b)(?P<n>c)"),
        (r"(a)\1", None),
        ("(?P<n>a)(?P=n)", None),
        ("a(?!b", "a"),
    ],
)
def test_a_lenient_pattern_has_no_look_around(pattern, kept):
    """It allows more so, and compiles; one that names what it found is left out."""
    schema = prepared(lenient({"properties": {"pattern": {"pattern": pattern}}}))
    assert schema["properties"]["pattern"].get("pattern") == kept
    assert re.compile(kept or "")
    strict = prepared({"properties": {"pattern": {"pattern": pattern}}})
    assert strict["properties"]["pattern"]["pattern"] == pattern


def test_unique_items_that_need_not_be_are_no_constraint():
    """The compiler would refuse the word."""
    assert prepared({"uniqueItems": False}).keys() == {OPTIONS}
    assert prepared({"uniqueItems": True}).keys() == {OPTIONS, "uniqueItems"}


def test_only_schemas_are_changed():
    """Neither values, nor names of properties that are called like a keyword."""
    given = {
        "properties": {"const": {"a": 1}, "properties": {"anyOf": [{"a": 1}, True]}},
        "const": {"a": 1},
        "enum": [{"a": 1}],
        "items": {"default": {"a": 1}, "a": 1},
    }
    made = mapped(given, lambda schema: {k: v for k, v in schema.items() if k != "a"})
    assert made == {
        "properties": {"const": {}, "properties": {"anyOf": [{}, True]}},
        "const": {"a": 1},
        "enum": [{"a": 1}],
        "items": {"default": {"a": 1}},
    }


def test_schemas_in_a_grammars_rules_are_prepared():
    """Each stays in its line; what is no rule of a schema alone, or no schema, stays as it is."""
    ours = prepared_text('{"type": "object"}')
    assert json.loads(ours) == prepared({"type": "object"})
    others = 'start: a b\nc: "x: %json {}"\nd: %json {} "y"\ne: %json {"a"}\nf: %json {,}'
    grammar = f'a: %json {{"type": "object"}}\n{others}\nb: %json {{"type": "object"}}'
    assert with_prepared_rules(grammar) == f"a: %json {ours}\n{others}\nb: %json {ours}"


def test_what_is_left_out_of_patterns_is_told():
    """Where the schema is lenient; a pattern that is kept to as it is, is not named."""
    schema = {"properties": {"a": {"pattern": "(?=x)y"}, "b": {"pattern": "y"}}}
    assert left_out(schema) == []
    assert left_out(lenient(schema)) == ['Unimplemented parts of the pattern "(?=x)y"']


def test_a_value_that_would_be_rounded_is_refused_or_left_out():
    """Where the schema is lenient the latter, which is told; its other values stay."""
    large = {"type": "integer", "enum": [1, 2**53 + 1]}
    schema = {"properties": {"key": large}, "maximum": 2**53 + 1}
    with pytest.raises(ValueError, match="enum has 9007199254740993"):
        prepared(schema)
    with pytest.raises(ValueError, match="enum has"):
        with_prepared_rules(f"a: %json {json.dumps(schema)}")
    made = prepared(lenient(schema))
    assert made["properties"] == {"key": {"type": "integer"}}
    assert made["maximum"] < 2**53 + 1
    (said,) = left_out(lenient(schema))
    assert said.startswith("enum has 9007199254740993")


@pytest.mark.parametrize(
    ("names", "made"),
    [
        ({"type": "string"}, {"additionalProperties": {"type": "integer"}}),
        (
            {"enum": ["x", "y"]},
            {
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                "additionalProperties": False,
            },
        ),
        (
            {"type": "string", "const": "x"},
            {"properties": {"x": {"type": "integer"}}, "additionalProperties": False},
        ),
        (
            {"title": "Key", "pattern": "^a"},
            {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
        ),
    ],
)
def test_names_of_properties_become_properties(names, made):
    """As far as they can be listed: what cannot stays, for the compiler to say so."""
    values = {"type": "object", "additionalProperties": {"type": "integer"}}
    found = prepared({**values, "propertyNames": names})
    del found["x-guidance"]
    assert found == {"type": "object", **made}
    for other in ({"maxLength": 2}, {"enum": ["x"], "maxLength": 2}, {"$ref": "#/$defs/a"}):
        assert prepared({**values, "propertyNames": other})["propertyNames"] == other
