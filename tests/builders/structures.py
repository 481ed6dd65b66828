"""Structures of all kinds, and what says of a text whether it keeps to one."""

from __future__ import annotations

import json
import re
import string
from dataclasses import dataclass
from typing import Any

import jsonschema
from hypothesis import strategies as st

LETTERS = string.ascii_letters + string.digits + ' "\\{}[]:,é你😀\n'


@dataclass(frozen=True)
class Wanted:
    """A parameter of a request, and its value."""

    name: str
    value: Any

    def keeps(self, text: str) -> bool:
        """Return whether a whole text is what was asked for, by another library than ours."""
        if self.name == "guided_json":
            return jsonschema.Draft202012Validator(self.value).is_valid(json.loads(text))
        if self.name == "guided_regex":
            return re.fullmatch(self.value, text) is not None
        return text in self.value


def _objects(inner):
    def made(properties, optional):
        return {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name not in optional],
            "additionalProperties": False,
        }

    names = st.text("abcé_", min_size=1, max_size=3)
    return st.builds(made, st.dictionaries(names, inner, max_size=3), st.sets(names, max_size=2))


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"type": "integer", "minimum": -7, "maximum": 130},
            {"type": "string", "maxLength": 4},
            {"type": "string", "pattern": "^[A-Z]{2}[0-9]?$"},
            {"enum": ["red", 7, None, "é\n"]},
            {"const": {"a": [1, "b"]}},
        ]
    ),
    lambda inner: st.one_of(
        _objects(inner),
        st.builds(
            lambda items, least: {
                "type": "array",
                "items": items,
                "minItems": least,
                "maxItems": 3,
            },
            inner,
            st.integers(0, 2),
        ),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
    ),
    max_leaves=5,
)
REGEXES = st.recursive(
    st.sampled_from(["a", "[0-9]", "[^a-z]", "é", r"\.", " ", r"\n", "."]),
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds("({}){{1,3}}".format, inner),
        st.builds("({})?".format, inner),
    ),
    max_leaves=8,
)
CHOICES = st.lists(st.text(LETTERS, min_size=1, max_size=12), min_size=1, max_size=5, unique=True)
STRUCTURES = st.one_of(
    st.builds(Wanted, st.just("guided_json"), SCHEMAS),
    st.builds(Wanted, st.just("guided_regex"), REGEXES),
    st.builds(Wanted, st.just("guided_choice"), CHOICES),
)
