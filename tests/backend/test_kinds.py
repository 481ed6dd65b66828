"""The table of kinds of models."""

import ast
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ge_backend.errors import DeviceUnavailable
from ge_backend.kinds import FUSED, GRAPH, KINDS, TEXT, kind_of


@dataclass(frozen=True)
class Model:
    directory: Path
    filename: str = ""
    fuse: str = ""


def defines(name):
    """Whether "module:name" is there; host modules cannot be imported outside of a stub."""
    module, _, wanted = name.partition(":")
    source = Path(importlib.util.find_spec(module).origin).read_text()
    return wanted in {getattr(node, "name", "") for node in ast.parse(source).body}


OWN = [kind for kind in KINDS if kind is not TEXT]  # for that see tests/text/test_tables.py


@pytest.mark.parametrize("kind", OWN, ids=[kind.name for kind in OWN])
def test_every_name_of_a_row_is_there(kind):
    """A row of strings is right only if each of them can be resolved."""
    assert all(map(defines, filter(None, (kind.matches, kind.completes, kind.opens))))


def test_the_last_kind_takes_what_no_other_does():
    """Otherwise a model could be of no kind."""
    assert KINDS[-1] is GRAPH
    assert [kind.matches for kind in KINDS].index("") == len(KINDS) - 1


def test_a_model_is_of_the_first_kind_that_knows_it(tmp_path):
    """A folder without files is a graph's, one that names an ensemble fused, a decoder's text."""
    assert kind_of(Model(tmp_path)) is GRAPH
    assert kind_of(Model(tmp_path, fuse="chain")) is FUSED
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'
    )
    assert kind_of(Model(tmp_path)) is TEXT
    assert kind_of(Model(tmp_path, filename="model.onnx")) is GRAPH


def test_a_root_that_is_left_out_is_named():
    """Text generation is a folder of its own, which an installation for encoders leaves out."""
    absent = replace(TEXT, opens="ge_absent.somewhere:Class")
    with pytest.raises(DeviceUnavailable, match="is served by ge_absent, which is not installed"):
        absent.open(None)
    with pytest.raises(ModuleNotFoundError):
        replace(TEXT, opens="ge_backend.absent:Class").open(None)
