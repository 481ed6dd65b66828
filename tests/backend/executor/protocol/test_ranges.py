"""Every field of every message has its range, and what is out of it is no message."""

import json
import typing
from dataclasses import fields, is_dataclass

import pytest

from builders.any_messages import rule_of
from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol import messages
from ge_backend.executor.protocol.codec import MAX_NUMBER
from ge_backend.executor.protocol.ranges import RULES, check_slots
from ge_backend.executor.protocol.wire import decode
from ge_backend.tensors import DataType, ShapePolicy


def parts_of(annotation, found=None):
    """Return every dataclass that values of an annotation are made of."""
    found = set() if found is None else found
    if is_dataclass(annotation) and annotation is not DataType:
        found.add(annotation)
        for hint in typing.get_type_hints(annotation).values():
            parts_of(hint, found)
    for argument in typing.get_args(annotation):
        parts_of(argument, found)
    return found


PARTS = set().union(*(parts_of(cls) for cls in typing.get_args(messages.Message)))


def refused(reason, **packed):
    with pytest.raises(ProtocolError, match=reason):
        decode(json.dumps(packed).encode())


def test_every_rule_is_about_a_field_that_there_is():
    """A rule for a field that was renamed would check nothing."""
    known = {(cls, field.name) for cls in PARTS for field in fields(cls)}
    assert set(RULES) <= known


def test_every_shape_and_type_has_its_rule():
    """Fields that are called so hold shapes and data types everywhere, and are checked as such."""
    for cls in PARTS:
        for field in fields(cls):
            rule = rule_of(cls, field.name)
            is_type = typing.get_type_hints(cls)[field.name] is DataType  # the table is its rule
            if (
                cls is not messages.TensorRef and not is_type
            ):  # `Segment.view` refuses the run alone
                chosen = field.name == "dtype" or (cls, field.name) == (ShapePolicy, "runs")
                assert chosen == bool(rule.choices), (cls, field.name)
            if field.name in {"shape", "shapes", "dims", "initial_dims", "fixed"}:
                assert rule.shape, (cls, field.name)


@pytest.mark.parametrize("after", [-1, MAX_NUMBER + 1, 2**63, 10**30])
def test_numbers_have_a_least_and_a_most(after):
    """What could not be added to another number without leaving 64 bits is refused."""
    refused("expected 0 to", type="HistoryRequest", id=1, after=after)
    assert (
        decode(json.dumps({"type": "HistoryRequest", "id": 1, "after": MAX_NUMBER}).encode()).after
        == MAX_NUMBER
    )


@pytest.mark.parametrize(
    "shape", [[1] * 33, [2**47, 3], [0, 2**48, 2], [-1], [2**49]], ids=str
)  # fmt: skip
def test_shapes_are_those_of_tensors(shape):
    """Too many dimensions, or more elements than can be addressed, are no shape."""
    given = {"name": "x", "dtype": "FP32", "shape": shape, "fill": 0}
    refused(
        "expected|dimensions|elements", type="Prepare", id=1, graph=1, repeats=1, inputs=[given]
    )


def test_types_are_those_that_there_are():
    """A data type that nobody knows is refused before anything looks it up."""
    given = {"name": "x", "dtype": "FP31", "shape": [1], "fill": 0}
    refused("one of", type="Prepare", id=1, graph=1, repeats=1, inputs=[given])


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_texts_can_be_names_of_files(path):
    """A NUL, or half a character, in a path would only be found deep inside."""
    source = {"path": path, "stamp": ""}
    refused("protocol version", type="Load", id=1, source=source)


def test_names_of_files_that_are_no_unicode_pass():
    """Linux lets a file have any bytes as its name; Python has them as lone surrogates."""
    source = {"path": b"m\xff.onnx".decode(errors="surrogateescape"), "stamp": ""}
    message = decode(json.dumps({"type": "Load", "id": 1, "source": source}).encode())
    assert message.source.path == source["path"]


def test_an_error_may_say_anything():
    """An engine's text is for people, and must reach them whatever is in it."""
    failed = {"type": "Failed", "id": 1, "error": "GraphFailed", "message": "a\0b"}
    assert decode(json.dumps(failed).encode()).message == "a\0b"


def test_keys_have_ranges_too():
    """Names of tensors in a table are texts like all others."""
    refused("NUL", type="Compile", id=1, graph=1, shapes=[{"\0": [1]}])


def test_reals_fit_into_floats():
    """JSON knows whole numbers of any length where a float is expected."""
    given = {"name": "x", "dtype": "FP32", "shape": [1], "fill": 10**400}
    refused("number", type="Prepare", id=1, graph=1, repeats=1, inputs=[given])


def run_in(*slots, rows=4, starting=()):
    """Return a run with its rows in these slots."""
    return messages.Run(
        id=1, graph=1, arena=0, inputs=(), outputs=(), slots=slots, starting=starting, rows=rows
    )


def test_slots_that_are_kept_may_be_named_in_any_order():
    """A run has a slot for each of its rows, some of them starting, and padding behind them."""
    check_slots(run_in(3, 0, 2, starting=(0,)), 4)
    check_slots(run_in(), 0)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (run_in(4), "of the 4 that are kept"),
        (run_in(0, 2**20), "of the 4 that are kept"),
        (run_in(1, 1), "once"),
        (run_in(1, starting=(2,)), "once"),
        (run_in(0, 1, 2, rows=2), "a batch of 2 rows"),
    ],
)
def test_slots_that_are_not_kept_are_refused(run, reason):
    """A slot beyond those that are kept, one named twice, and more slots than rows are no run."""
    with pytest.raises(ProtocolError, match=reason):
        check_slots(run, 4)
