"""The table of engines says what is there: modules, constructors, extras, parameters."""

import ast
import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from ge_backend.model.config.engine_table import (
    ENGINES,
    LANGUAGE_ENGINES,
    engine_names,
    engines_for,
    file_ends,
    language_engines,
)
from ge_backend.model.config.settings import FAMILIES, SETTINGS

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = None

PROJECT = Path(__file__).parents[4] / "pyproject.toml"
IDS = [f"{row.name}-{'-'.join(row.kinds)}" for row in ENGINES]


@pytest.mark.parametrize("row", ENGINES, ids=IDS)
def test_a_row_names_a_constructor_that_is_there(row):
    """Read, not imported: its library may be missing. It takes a source and what a device gives."""
    module, _, name = row.opener.partition(":")
    tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text())
    made = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    init = next(n for n in made.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    assert len(init.args.args) == 3
    assert len(init.args.kwonlyargs) == sum(d is not None for d in init.args.kw_defaults)


def test_a_kind_of_device_has_engines_for_text_generators_in_order():
    """A name stands for itself, whatever the device: its opener says why it refuses."""
    assert [row.name for row in language_engines("cpu")] == ["openvino", "torch"]
    assert [row.name for row in language_engines("npu")] == ["torch"]
    assert [row.name for row in language_engines("npu", "openvino")] == ["openvino"]
    assert [row.name for row in language_engines("cpu", precision="int8")] == ["openvino"]
    assert language_engines("cpu", "torch", "int8") == ()
    assert [row.name for row in language_engines("cpu", cache="int8")] == ["openvino"]
    assert language_engines("npu", cache="int8") == language_engines("cpu", "torch", "fp32", "int8")
    assert language_engines("npu", cache="int8") == ()
    assert language_engines("moon") == ()


@pytest.mark.skipif(tomllib is None, reason="tomllib comes with Python 3.11")
@pytest.mark.parametrize(
    "row",
    [*ENGINES, *LANGUAGE_ENGINES],
    ids=[*IDS, *(f"{row.name}-language" for row in LANGUAGE_ENGINES)],
)
def test_a_row_names_an_extra_that_is_there(row):
    """The error of an engine that is not installed says what to install."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert set(row.extra.split(",")) <= set(extras)


@pytest.mark.parametrize("row", ENGINES, ids=IDS)
def test_options_are_explained(row):
    """Parameters that an engine understands are a family of the settings."""
    assert not row.options or row.options in {family.prefix for family in FAMILIES}


def test_one_kind_of_device_has_an_engine_once_for_a_file():
    """By its name, which the parameter `engine` takes."""
    named = Counter(
        (row.name, kind, end) for row in ENGINES for kind in row.kinds for end in row.ends
    )
    assert set(named.values()) == {1}
    setting = next(setting for setting in SETTINGS if setting.key == "engine")
    assert set(engine_names()) <= set(setting.choices)


def test_files_are_told_by_the_end_of_their_names():
    """Per kind of device, in the order of the table."""
    assert engines_for("model.onnx", "cpu")[0].name == "onnxruntime"
    assert [row.name for row in engines_for("large_tokenizer.json", "cpu")] == ["tokenizers"]
    assert engines_for("model.onnx", "npu") == ()
    assert engines_for("model.stone", "cpu") == ()
    assert {".onnx", ".pt2", ".pt", "tokenizer.json", "image.json"} <= set(file_ends())
    assert file_ends("npu") == (".pt2", ".pt", "config.json")
