"""Messages of every kind with every value that their fields may hold, and with others."""

import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from hypothesis import strategies as st

from ge_backend.executor.protocol.codec import MAX_NUMBER
from ge_backend.executor.protocol.ranges import RULES, USUAL
from ge_backend.tensors import DATA_TYPES, DataType

TEXTS = st.text(max_size=20).filter(lambda text: "\0" not in text)


def values_of(annotation, rule=None):
    """Return a strategy for any annotation that messages use, within the rule of its field."""
    rule = rule or USUAL
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        if arguments[0] is int and rule.shape:
            return st.lists(st.integers(rule.least, 1000), max_size=4).map(tuple)
        return st.lists(values_of(arguments[0], rule), max_size=3).map(tuple)
    if origin in {dict, Mapping}:
        return st.dictionaries(TEXTS, values_of(arguments[1], rule), max_size=3)
    if annotation in _SCALARS:
        return _SCALARS[annotation](rule)
    hints = typing.get_type_hints(annotation)
    return st.builds(
        annotation,
        **{
            f.name: values_of(hints[f.name], RULES.get((annotation, f.name), USUAL))
            for f in fields(annotation)
        },
    )


def _texts(rule):
    if rule.choices:
        return st.sampled_from(sorted(rule.choices))
    return st.text(max_size=20) if rule.words else TEXTS


_SCALARS = {
    int: lambda rule: st.integers(rule.least, rule.most),
    float: lambda rule: st.floats(allow_nan=False),
    bool: lambda rule: st.booleans(),
    bytes: lambda rule: st.binary(max_size=20),
    str: _texts,
    DataType: lambda rule: st.sampled_from(list(DATA_TYPES.values())),
}


FITTING = {
    "numbers": st.sampled_from([0, 1, 2, 3, 4, 7, 64, 2**62]),
    "sizes": st.sampled_from([0, 1, 2, 3, 33]),
    "words": st.sampled_from(["x", "y", "", "FP32", "batch", "\udc80", "x" * 999]),
    "reals": st.sampled_from([0, 1.5, float("inf")]),
}
# No sizes that would only fill memory.
ANY = {
    "numbers": st.sampled_from([0, 1, 2**62, 2**63, 10**30, -1, -(2**63)]),
    "sizes": st.sampled_from([0, 1, 33, 2**48, 2**62, -1]),
    "words": st.sampled_from(["x", "\0", "\ud800"]),
    "reals": st.sampled_from([0, 10**400, -float("inf")]),
}


def rule_of(cls, field):
    """Return what a field of a message, or of a value in one, may hold."""
    return RULES.get((cls, field), USUAL)


def hostile_json(kinds, paths):
    """Return a strategy for what JSON gives that looks like a message and need not be one.

    Most have only values that are in their fields' ranges, so that they come to the code behind.

    Args:
        kinds: the classes of the messages.
        paths: of files that there are.
    """
    fitting, other = (_messages(kinds, paths, scalars) for scalars in (FITTING, ANY))
    changed = st.tuples(fitting, st.integers(0, 9), _junk()).map(_changed)
    return st.one_of(fitting, fitting, changed, other)


def _messages(kinds, paths, scalars):
    return st.one_of([_packed(cls, paths, scalars).map(_named(cls)) for cls in kinds])


def _named(cls):
    return lambda packed: {"type": cls.__name__, **packed}


def _changed(parts):
    packed, number, junk = parts
    keys = sorted(packed)
    return {**packed, keys[number % len(keys)]: junk}


def _junk():
    odd = st.sampled_from([None, [], {}, [[[1]]], 0.5, "", True])
    return st.one_of(odd, ANY["numbers"], ANY["words"])


def _packed(annotation, paths, scalars, rule=None, name=""):
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return st.lists(_packed(arguments[0], paths, scalars, rule, name), max_size=3)
    if origin in {dict, Mapping}:
        values = _packed(arguments[1], paths, scalars, rule, name)
        return st.dictionaries(scalars["words"], values, max_size=2)
    if is_dataclass(annotation) and annotation is not DataType:
        hints = typing.get_type_hints(annotation)
        return st.fixed_dictionaries(
            {
                f.name: _packed(
                    hints[f.name], paths, scalars, RULES.get((annotation, f.name), USUAL), f.name
                )
                for f in fields(annotation)
            }
        )
    return _scalar(annotation, paths, scalars, rule, name)


def _scalar(annotation, paths, scalars, rule, name):
    if name == "path":
        return st.sampled_from([*paths, "", "/", "nowhere.null"])
    if annotation is int and rule.most < 4:
        return st.integers(rule.least, rule.most)
    if annotation is int:
        small = rule.shape or rule.most < MAX_NUMBER or name in {"buffer_bytes", "nbytes"}
        return scalars["sizes" if small else "numbers"]
    if annotation is DataType:
        return st.sampled_from(sorted(DATA_TYPES))
    if annotation is str and rule.choices:
        return st.sampled_from(sorted(rule.choices))
    return {bool: st.booleans(), float: scalars["reals"], str: scalars["words"]}[annotation]
