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


def test_the_backends_tests_are_collected_without_the_other_roots():
    """None of them imports text generation, the API or the tools; `make test-encoders` runs them."""
    environment = {**os.environ, "GE_ABSENT": "ge_text,ge_openai,ge_tools"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--collect-only",
            "tests/backend/host",
            "tests/backend/serving",
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
