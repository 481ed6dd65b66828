"""The commands in docs/memory.md print what the page says, but for sizes that differ by machine."""

import re
import shlex
from pathlib import Path

import pytest

from ge_tools.main import main

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "memory.md").read_text()
EXAMPLES = [
    tuple(session.removeprefix("$ ").split("\n", 1))
    for session in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]
MODELS = ("lengths_sum", "mean_embedding", "shape_classifier", "text_encoder", "token_scores")
SIZE = re.compile(r"\d+(\.\d+)? (B|KiB|MiB|GiB)")


@pytest.fixture(scope="module")
def models(tmp_path_factory, example_models):
    """The example models of the page."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 31):
        pytest.skip("this ONNX Runtime does not tell what a run takes")
    folder = tmp_path_factory.mktemp("memory")
    (folder / "models").mkdir()
    for name in MODELS:
        (folder / "models" / name).symlink_to(example_models / name)
    return folder


def without_sizes(text):
    """Return the words of each line, every size as one."""
    return [SIZE.sub("SIZE", line).split() for line in text.strip().splitlines()]


def test_the_page_has_examples():
    """The pattern that finds them still does."""
    assert len(EXAMPLES) == 1


@pytest.mark.parametrize(("command", "printed"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_a_command_prints_what_the_page_says(models, monkeypatch, capsys, command, printed):
    """Who has a place, and who waits for whom."""
    monkeypatch.chdir(models)
    monkeypatch.setenv("GE_CACHE_DIR", "off")
    program, *arguments = shlex.split(command)
    assert program == "ge-backend"
    assert main(arguments) == 0
    assert without_sizes(capsys.readouterr().out) == without_sizes(printed)
