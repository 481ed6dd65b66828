"""Showing that something takes its time."""

import io
import logging
import sys

import pytest

from ge_tools.report.waiting import waiting

log = logging.getLogger("ge_backend.something")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_file_gets_the_lines_of_the_log(capsys):
    """While it runs, and not after."""
    with waiting("compiling"):
        log.info("ten seconds")
    log.info("later")
    assert capsys.readouterr().err == "ten seconds\n"


def test_a_terminal_gets_a_spinner(monkeypatch):
    """With the title; the log would break it."""
    pytest.importorskip("rich")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with waiting("compiling an encoder"):
        log.info("ten seconds")
    assert "compiling an encoder" in sys.stderr.getvalue()
    assert "ten seconds" not in sys.stderr.getvalue()


def test_without_rich_the_log_does(monkeypatch):
    """It is no requirement."""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with waiting("compiling"):
        log.info("ten seconds")
    assert sys.stderr.getvalue() == "ten seconds\n"


def test_an_error_passes_through(capsys):
    """And the log is as before."""
    before = list(logging.getLogger("ge_backend").handlers)
    with pytest.raises(RuntimeError, match="broken"), waiting("compiling"):
        raise RuntimeError("broken")
    assert logging.getLogger("ge_backend").handlers == before
