"""Roots that are left out."""

import os
import subprocess
import sys

import pytest

from absent import Absent
from builders.roots import ROOT


def test_an_absent_root_is_not_found():
    """It is named as Python names a package that is not installed; others go on to be looked for."""
    finder = Absent(["ge_text"])
    with pytest.raises(ModuleNotFoundError, match="'ge_text'") as caught:
        finder.find_spec("ge_text.engine")
    assert caught.value.name == "ge_text"
    assert finder.find_spec("ge_texture") is None
    assert finder.find_spec("ge_backend.errors") is None


def run_without(roots, *arguments):
    """Run pytest where some roots are not installed; return what it prints."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "GE_ABSENT": roots}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


def test_the_backends_tests_are_collected_without_the_other_roots():
    """None of them imports text generation, the API or the tools; `make test-encoders` runs them."""
    folders = ("tests/backend/host", "tests/backend/serving")
    run_without("ge_text,ge_openai,ge_tools", "--collect-only", *folders)


def test_the_front_works_where_nothing_else_of_ours_is_installed():
    """It is a client of Triton: it imports, and reads folders and texts; `make test-front` runs all."""
    everything = run_without("ge_backend,ge_text,ge_tools", "--collect-only", "tests/frontend")
    assert "test_front.py" in everything
    names = (
        "app",
        "chat_template",
        "embedding_tokens",
        "template_folders",
        "vector_endpoints",
        "triton",
    )
    files = (f"tests/frontend/test_{name}.py" for name in names)
    assert " skipped" not in run_without("ge_backend,ge_text,ge_tools", *files)
