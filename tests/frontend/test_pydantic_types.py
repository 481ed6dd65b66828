"""What pydantic makes of Python's types can be an argument of a tool, and a part of a format."""

import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import typing
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Optional, Union

import pydantic
import pytest

from builders.guides import open_guides, parse_parameters
from builders.writer import VOCABULARY, write_tokenizer
from ge_openai.call_forms import LISTED
from ge_openai.schemas import Schema, read_response_format
from ge_openai.structure import call_or_format, format_alone


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(pydantic.BaseModel):
    x: int = 0
    y: Optional[float] = None  # noqa: UP045 - as many write it


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: str


class Tree(pydantic.BaseModel):
    value: int
    children: list["Tree"] = []


class Pair(typing.NamedTuple):
    a: int
    b: str


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    a: int


# By name: the type, and a value of it in JSON.
TYPES = {
    "str": (str, '"a"'),
    "int": (int, "-7"),
    "float": (float, "1.5"),
    "bool": (bool, "true"),
    "bytes": (bytes, '"ab"'),
    "None": (type(None), "null"),
    "Any": (Any, "[1]"),
    "object": (dict, '{"a":1}'),
    "datetime": (dt.datetime, '"2026-01-02T03:04:05Z"'),
    "date": (dt.date, '"2026-01-02"'),
    "time": (dt.time, '"03:04:05Z"'),
    "timedelta": (dt.timedelta, '"P1DT2H"'),
    "UUID": (uuid.UUID, '"12345678-1234-4234-8234-123456789012"'),
    "UUID4": (pydantic.UUID4, '"12345678-1234-4234-8234-123456789012"'),
    "Decimal": (decimal.Decimal, "1.5"),
    "Decimal as text": (decimal.Decimal, '"1.5"'),
    "condecimal": (pydantic.condecimal(max_digits=5, decimal_places=2), "1.25"),
    "Fraction": (fractions.Fraction, '"1/2"'),
    "Path": (pathlib.Path, '"a/b"'),
    "FilePath": (pydantic.FilePath, '"a/b"'),
    "DirectoryPath": (pydantic.DirectoryPath, '"a/b"'),
    "list": (list[int], "[1,2]"),
    "bare list": (list, '[1,"a"]'),
    "set": (set[int], "[1,2]"),
    "frozenset": (frozenset[str], '["a"]'),
    "deque": (deque[int], "[1]"),
    "Sequence": (Sequence[int], "[1]"),
    "tuple": (tuple[int, str], '[1,"a"]'),
    "tuple of any length": (tuple[int, ...], "[1,2,3]"),
    "empty tuple": (tuple[()], "[]"),
    "NamedTuple": (Pair, '[1,"a"]'),
    "dict": (dict[str, int], '{"a":1}'),
    "dict of numbers": (dict[int, str], '{"1":"a"}'),
    "dict of a Literal": (dict[Literal["a", "b"], int], '{"a":1}'),
    "dict of an Enum": (dict[Colour, int], '{"red":1}'),
    "dict of UUIDs": (dict[uuid.UUID, int], '{"12345678-1234-4234-8234-123456789012":1}'),
    "Mapping": (Mapping[str, list[int]], '{"a":[1]}'),
    "Literal": (Literal["a", 1] | None, '"a"'),
    "Enum": (Colour, '"red"'),
    "IntEnum": (Level, "2"),
    "Optional": (int | None, "null"),
    "Union": (Union[int, str, list[int]], '"a"'),  # noqa: UP007 - as many write it
    "discriminated Union": (
        Annotated[Cat | Dog, pydantic.Field(discriminator="kind")],
        '{"kind":"dog","name":"a"}',
    ),
    "Union of models": (Cat | Dog, '{"kind":"cat","lives":9}'),
    "model": (Point, '{"x":1,"y":null}'),
    "recursive model": (Tree, '{"value":1,"children":[{"value":2,"children":[]}]}'),
    "model of others": (Open, '{"a":1,"b":2}'),
    "model of no others": (Closed, '{"a":1}'),
    "constr": (pydantic.constr(min_length=1, max_length=3, pattern="^[a-z]+$"), '"abc"'),
    "conint": (pydantic.conint(ge=1, lt=10, multiple_of=3), "9"),
    "confloat": (pydantic.confloat(gt=0, le=1), "0.5"),
    "conlist": (pydantic.conlist(int, min_length=1, max_length=2), "[1]"),
    "conset": (pydantic.conset(int, min_length=1, max_length=2), "[1]"),
    "StrictInt": (pydantic.StrictInt, "1"),
    "PositiveInt": (pydantic.PositiveInt, "1"),
    "AwareDatetime": (pydantic.AwareDatetime, '"2026-01-02T03:04:05Z"'),
    "PastDate": (pydantic.PastDate, '"2020-01-02"'),
    "HttpUrl": (pydantic.HttpUrl, '"http://a.b/c"'),
    "AnyUrl": (pydantic.AnyUrl, '"ftp://a.b"'),
    "PostgresDsn": (pydantic.PostgresDsn, '"postgres://a:b@c/d"'),
    "IPv4Address": (ipaddress.IPv4Address, '"127.0.0.1"'),
    "IPv6Address": (ipaddress.IPv6Address, '"::1"'),
    "IPv4Network": (ipaddress.IPv4Network, '"10.0.0.0/8"'),
    "IPvAnyAddress": (pydantic.IPvAnyAddress, '"127.0.0.1"'),
    "Base64Bytes": (pydantic.Base64Bytes, '"YWI="'),
    "Base64Str": (pydantic.Base64Str, '"YWI="'),
    "Json": (pydantic.Json[list[int]], '"[1]"'),
    "SecretStr": (pydantic.SecretStr, '"a"'),
    "SecretBytes": (pydantic.SecretBytes, '"a"'),
    "ByteSize": (pydantic.ByteSize, "1024"),
    "Pattern": (re.Pattern, '"a+"'),
    "described": (Annotated[int, pydantic.Field(description="x", examples=[1], title="T")], "1"),
    "deprecated": (Annotated[int, pydantic.Field(deprecated=True)], "1"),
    "JsonValue": (pydantic.JsonValue, '{"a":[1,null]}'),
}


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Return what tells whether an answer that keeps to a structure may be a text."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = write_tokenizer(folder)
    compile_structure = open_guides(folder / "tokenizer.json", VOCABULARY, (0,))

    def check(held, text):
        guide = compile_structure(parse_parameters(held.sampling).structure).fork()
        ids = [token for letter in text for token in tokenizer.encode(letter).ids]
        return guide.fitting([*ids, 0]) == len(ids) + 1

    return check


@pytest.mark.parametrize("name", TYPES)
def test_a_field_of_the_type_can_be_asked_for(fits, name):
    """As the argument of a tool, beside a format, and as a part of it; a value of it fits."""
    kind, value = TYPES[name]
    schema = pydantic.create_model("Model", field=(kind, ...)).model_json_schema()
    text = f'{{"field":{value}}}'
    described = {"type": "json_schema", "json_schema": {"name": "m", "schema": schema}}
    assert fits(format_alone(read_response_format(described)), text)
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    answer = Schema(field="response_format", given={"enum": [1]})
    held = call_or_format(LISTED, tools, answer, {}, several=True)
    assert fits(held, f'[{{"name":"f","arguments":{text}}}]')
