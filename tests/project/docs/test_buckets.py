"""The commands in docs/buckets.md print what the page says that they print."""

import re
import shlex
from pathlib import Path

import pytest

from ge_tools.main import main

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "buckets.md").read_text()
FILES = re.findall(r"^```text (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SESSIONS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [
    tuple(example.split("\n", 1))
    for session in SESSIONS
    for example in session.removeprefix("$ ").split("\n$ ")
]


@pytest.fixture
def workplace(tmp_path, monkeypatch, example_models):
    """A folder with the files of the page and what `make serve` makes, no model of git's."""
    for name, content in FILES:
        (tmp_path / name).write_text(content)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "models").symlink_to(example_models)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GE_CACHE_DIR", "off")


def test_the_page_has_examples():
    """The pattern that finds them still does."""
    assert len(EXAMPLES) >= 4
    assert {name for name, _ in FILES} == {"buckets.txt", "blocks.txt", "lengths.txt"}


@pytest.mark.parametrize(("command", "printed"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_a_command_prints_what_the_page_says(workplace, capsys, command, printed):
    """Word for word."""
    program, *arguments = shlex.split(command)
    assert program == "ge-backend"
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip() == printed.strip()


def test_the_file_of_blocks_is_one(workplace):
    """The second file is one that a language model runs in, with blocks of the default size."""
    from ge_text.engine.settings import EngineSettings
    from ge_text.engine.shapes import file_shapes

    lists = file_shapes(Path("blocks.txt"), EngineSettings().block_size)
    assert lists.decode == ((4, 1, 8), (4, 1, 16))
    assert lists.prompt == ((1, 128, 8), (1, 128, 16), (1, 256, 8), (1, 256, 16))


def test_the_file_of_buckets_is_one(workplace):
    """The first file has the two places of a model with one ragged axis."""
    from ge_backend.shapes.buckets.grid import file_grid

    entries = file_grid(Path("buckets.txt"), ["sequence"]).entries
    assert entries == ((1, 128), (1, 256), *[(r, s) for r in (8, 16) for s in (16, 32, 48)])
