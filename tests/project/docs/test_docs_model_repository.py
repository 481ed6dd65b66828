"""The configurations of model_repository/ say why, and are read by the host's own parser."""

import re

import pytest

pytest.importorskip("tritonclient.grpc")

from builders.pages import ROOT
from ge_backend.model.config.model_folder import parse_config

CONFIGS = sorted((ROOT / "model_repository").glob("*/config.pbtxt"))
# A field at the top, with the comment above it and everything in it.
ENTRY = re.compile(r"(?m)^((?:#.*\n)*)(\w+)(.*\n(?:[ \]}].*\n|\n(?=[ \]}]))*)")


def test_there_are_configurations():
    """The pattern that finds them still does."""
    assert len(CONFIGS) >= 18


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_every_field_is_commented(path):
    """The file begins with what the model does, and each field at the top has a reason of its own."""
    text = path.read_text()
    entries = ENTRY.findall(text)
    assert re.match(r"# .*\.\n", text)
    assert {field for _, field, _ in entries} >= {"backend"} or '"ensemble"' in text
    assert [field for above, field, inside in entries if "#" not in above + inside] == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_the_host_reads_it(path):
    """Every field that it finds is one that the pattern above finds."""
    message = parse_config(path.read_text(), str(path))
    found = {field for _, field, _ in ENTRY.findall(path.read_text())}
    assert {descriptor.name for descriptor, _ in message.ListFields()} == found
