"""Each block on a page is what it looks like: commands, a configuration, Python, JSON, or listed here."""

import ast
import json
import re

import pytest

pytest.importorskip("tritonclient.grpc")

from builders.pages import PAGES, Block, blocks, commands_in
from ge_backend.model.config.cpp_ge_keys import CPP_GE_KEYS
from ge_backend.model.config.model_folder import parse_config
from ge_backend.model.config.settings import (
    FAMILIES,
    GENERATION_SETTINGS,
    HOST_KEYS,
    HOST_PREFIXES,
    SETTINGS,
)

# (page, how it begins) -> why nothing can be checked
SHOWN = {
    ("README.md", "tritonclient ──"): "a drawing",
    ("README.md", "a batch:"): "a drawing",
    ("docs/architecture.md", "stub: Triton's thread"): "a drawing",
    ("docs/architecture.md", "inline: Triton's thread"): "a drawing",
    ("docs/architecture.md", "sequence: Triton's thread"): "a drawing",
    ("docs/architecture.md", "fused: Triton's thread"): "a drawing",
    ("docs/architecture.md", "text: Triton's thread"): "a drawing",
    ("docs/buckets.md", "# many short"): "a bucket file, read by test_buckets.py",
    ("docs/buckets.md", "(1, [128, 256], [8, 16])"): "a bucket file, read by test_buckets.py",
    ("docs/buckets.md", "# size of one"): "a trace, read by test_buckets.py",
    ("docs/compile.md", "aipp_op {"): "CANN's own format, read by test_aipp.py",
    ("docs/compile.md", "  [ByOpType]"): "CANN's own format",
    ("docs/devices.md", "msprof --output"): "a command of CANN's",
    ("docs/devices.md", "models/encoder/1/model.1x64.om"): "names of files",
    ("docs/ensembles.md", "ensemble_scheduling {"): "a part, which ends in …",
    ("docs/generation.md", "models/writer/1/config.json"): "names of files",
    ("docs/generation.md", "models/writer/draft/config.json"): "names of files",
    ("docs/generation.md", "models/writer/1/adapters/pirate"): "names of files",
    ("docs/scale.md", "encoder: 2000 requests/s"): "what is printed, compared by test_load.py",
    ("docs/scale.md", "max by (namespace, pod)"): "PromQL, compared by test_kubernetes.py",
}
FIELD = re.compile(r"(?:#.*\n)*\s*[a-z_]+ *[:{\[] *\S?")
BLOCKS = [block for page in PAGES for block in blocks(page)]


def why_not(block: Block) -> str:
    """Return why a block cannot be checked, "" if it can."""
    reasons = (
        why
        for (page, begin), why in SHOWN.items()
        if page == block.page and block.text.startswith(begin)
    )
    return next(reasons, "")


def kind(block: Block) -> str:
    """Return what a block looks like."""
    if why_not(block):
        return "shown"
    if any(commands_in(block)):
        return "commands"
    if block.language:
        return block.language
    if block.text.startswith("{"):
        return "json"
    return "pbtxt" if FIELD.match(block.text) else "python"


def of_kind(name: str) -> list[Block]:
    """Return the blocks that look like that."""
    found = [block for block in BLOCKS if kind(block) == name]
    assert found
    return found


def is_known(key: str) -> bool:
    """Return whether a model may have this parameter."""
    names = {setting.key for setting in (*SETTINGS, *GENERATION_SETTINGS)} | set(HOST_KEYS)
    names |= {name for entry in CPP_GE_KEYS for name in entry.key.split(", ")}
    prefixes = (*(family.prefix for family in FAMILIES), *HOST_PREFIXES)
    return key in names or key.startswith(prefixes)


def test_every_block_is_of_a_kind_that_is_checked():
    """Those of no kind are listed above, and the list has no more than those."""
    assert {kind(block) for block in BLOCKS} == {"commands", "pbtxt", "python", "json", "shown"}
    used = {
        (page, begin)
        for block in BLOCKS
        for page, begin in SHOWN
        if page == block.page and block.text.startswith(begin)
    }
    assert used == set(SHOWN)


@pytest.mark.parametrize("block", of_kind("pbtxt"), ids=str)
def test_configurations_have_fields_that_the_host_knows(block):
    """The host would read them; those of our own models have parameters that we know."""
    message = parse_config(block.text, str(block))

    if message.backend in {"", "ge"}:
        assert [key for key in message.parameters if not is_known(key)] == []


@pytest.mark.parametrize("block", of_kind("python"), ids=str)
def test_python_compiles(block):
    """Code that is said to be Python is."""
    ast.parse(block.text, str(block))


@pytest.mark.parametrize("block", of_kind("json"), ids=str)
def test_json_is_json(block):
    """It can be read."""
    json.loads(block.text)


@pytest.mark.parametrize("block", of_kind("commands"), ids=str)
def test_blocks_of_commands_have_nothing_else(block):
    """Every line is a command, unless it is the output of one behind a prompt."""
    lines = [line for line in block.text.splitlines() if line.strip()]
    assert block.text.startswith("$ ") or len(list(commands_in(block))) == len(lines)
