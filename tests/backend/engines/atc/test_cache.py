"""The cache of compiled models: found by content, whole or not at all, made once."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ge_backend.engines.atc.cache import CompileCache, file_digest
from ge_backend.errors import ConfigError, ModelError

RECIPE = {"model": "abc", "arguments": ["--x=1"]}


@pytest.fixture
def cache(tmp_path):
    return CompileCache(tmp_path / "cache")


def write(content=b"compiled"):
    """Return a compiler that writes this, and leaves other things beside it."""

    def make(folder: Path) -> Path:
        assert list(folder.iterdir()) == []
        (folder / "junk").mkdir()
        (folder / "model.om").write_bytes(content)
        return folder / "model.om"

    return make


def refuse(folder):
    raise AssertionError("it is there already")


def rubbish(cache):
    """Return what is in the cache besides whole entries and locks."""
    entries = {entry.path.parent for entry in cache.entries()}
    return [p for p in cache.folder.iterdir() if p not in entries and p.suffix != ".lock"]


def test_what_was_made_is_found(cache):
    """Also by another process, and under another title."""
    made = cache.find_or_make(RECIPE, write(), title="models/a")
    found = CompileCache(cache.folder.parent).find_or_make(RECIPE, refuse, title="other")
    assert (made.fresh, found.fresh) == (True, False)
    assert found.path == made.path
    assert found.path.read_bytes() == b"compiled"
    assert (found.title, found.nbytes, found.recipe) == ("models/a", 8, RECIPE)
    assert rubbish(cache) == []


def test_another_recipe_is_another_entry(cache):
    """Whatever differs."""
    recipes = [RECIPE, {**RECIPE, "model": "xyz"}, {**RECIPE, "arguments": ["--x=2"]}]
    made = [
        cache.find_or_make(recipe, write(str(at).encode()), title="m")
        for at, recipe in enumerate(recipes)
    ]
    assert len({entry.path for entry in made}) == 3
    assert [entry.path.read_bytes() for entry in made] == [b"0", b"1", b"2"]


def test_a_statement_says_what_it_was_made_from(cache):
    """For people, and for whoever cleans up."""
    made = cache.find_or_make(RECIPE, write(), title="models/a")
    statement = json.loads((made.path.parent / "made.json").read_text())
    assert statement["title"] == "models/a"
    assert statement["recipe"] == RECIPE
    assert statement["sha256"] == file_digest(made.path)
    assert sorted(path.name for path in made.path.parent.iterdir()) == ["made.json", "model.om"]


def test_the_list_of_entries(cache):
    """Nothing, before anything was made; then sizes."""
    assert cache.entries() == []
    cache.find_or_make(RECIPE, write(b"12345"), title="a")
    cache.find_or_make({}, write(b"123"), title="b")
    assert {(entry.title, entry.nbytes) for entry in cache.entries()} == {("a", 5), ("b", 3)}


def truncate(entry):
    entry.path.write_bytes(b"comp")


def flip(entry):
    entry.path.write_bytes(b"Compiled")


def remove(entry):
    entry.path.unlink()


def unstate(entry):
    (entry.path.parent / "made.json").unlink()


def half_stated(entry):
    (entry.path.parent / "made.json").write_text('{"file": "model.om"')


def misstate(entry):
    file = entry.path.parent / "made.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"recipe": {"model": "other"}}))


@pytest.mark.parametrize("damage", [truncate, flip, remove, unstate, half_stated, misstate])
def test_a_damaged_entry_is_made_again(cache, damage):
    """It is never used, and nothing of it stays."""
    damage(cache.find_or_make(RECIPE, write(), title="m"))
    again = cache.find_or_make(RECIPE, write(b"new"), title="m")
    assert again.fresh
    assert again.path.read_bytes() == b"new"
    assert not cache.find_or_make(RECIPE, refuse, title="m").fresh
    assert rubbish(cache) == []


def test_a_failure_leaves_nothing(cache):
    """The next one tries again."""

    def fail(folder):
        (folder / "model.om").write_bytes(b"half")
        raise ModelError("the compiler says no")

    for _ in range(2):
        with pytest.raises(ModelError, match="says no"):
            cache.find_or_make(RECIPE, fail, title="m")
        assert rubbish(cache) == []
    assert cache.entries() == []
    assert cache.find_or_make(RECIPE, write(), title="m").fresh


def test_a_process_that_is_killed_leaves_no_entry(cache):
    """Its lock goes with it, and the next one cleans up."""
    script = (
        "import os, sys; from pathlib import Path\n"
        "from ge_backend.engines.atc.cache import CompileCache\n"
        "def make(folder):\n"
        "    (folder / 'model.om').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), 9)\n"
        f"CompileCache(Path(sys.argv[1])).find_or_make({RECIPE!r}, make, title='m')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, cache.folder.parent], check=False)
    assert done.returncode == -9
    assert len(rubbish(cache)) == 1
    assert cache.find_or_make(RECIPE, write(), title="m").path.read_bytes() == b"compiled"
    assert rubbish(cache) == []


def test_one_makes_it_and_the_others_wait(cache):
    """Two at once: the second gets what the first made."""
    begun, go = threading.Event(), threading.Event()
    results = {}

    def slow(folder):
        begun.set()
        assert go.wait(60)
        return write()(folder)

    def ask(name, make):
        results[name] = cache.find_or_make(RECIPE, make, title="m")

    first = threading.Thread(target=ask, args=("first", slow))
    first.start()
    assert begun.wait(60)
    second = threading.Thread(target=ask, args=("second", refuse))
    second.start()
    go.set()
    first.join()
    second.join()
    assert (results["first"].fresh, results["second"].fresh) == (True, False)
    assert results["first"].path == results["second"].path


def test_other_recipes_do_not_wait(cache):
    """Only equal ones do."""

    def nested(folder):
        assert cache.find_or_make({}, write(), title="inner").fresh
        return write()(folder)

    assert cache.find_or_make(RECIPE, nested, title="outer").fresh


def test_a_folder_that_cannot_be_used(tmp_path):
    """The message says what to set."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be kept in .*; set GE_CACHE_DIR"):
        CompileCache(tmp_path / "file").find_or_make(RECIPE, write(), title="m")


def test_what_is_found_needs_no_lock(cache):
    """So that a folder that is mounted read-only serves too."""
    made = cache.find_or_make(RECIPE, write(), title="m")
    for lock in cache.folder.glob("*.lock"):
        lock.unlink()
    assert cache.find_or_make(RECIPE, refuse, title="m").path == made.path
    assert list(cache.folder.glob("*.lock")) == []
