from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from demo import progress
from demo.progress import step
from rich.console import Console


def test_a_step_leaves_a_line_with_its_time(monkeypatch):
    """What took long is on record after the spinner is gone."""
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    console = Console(file=io.StringIO())
    with step(console, "counting sheep"):
        pass

    assert console.file.getvalue() == "  counting sheep: 2.5 s\n"


def test_a_step_that_fails_does_not_look_done():
    """An error passes through and no line is left."""
    console = Console(file=io.StringIO())
    with pytest.raises(ValueError, match="wolf"), step(console, "counting sheep"):
        raise ValueError("wolf")

    assert console.file.getvalue() == ""
