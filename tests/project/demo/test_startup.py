from __future__ import annotations

import io
import threading
import time
from types import SimpleNamespace

import pytest
from demo import startup
from demo.startup import shown_startup, warmup_line
from rich.console import Console

LOG = """\
I1121 08:50:03.269174 9566 model_lifecycle.cc:472] "loading: minilm_onnx:1"
I1121 08:50:04.100000 9566 logs.py:43] "ge minilm_onnx: warm-up 1/25 rows=16 sequence=256 712.5 ms"
I1121 08:50:05.200000 9566 logs.py:43] "ge minilm_onnx: warm-up 2/25 rows=16 sequence=128 301.0 ms"
I1121 08:50:05.300000 9566 model_lifecycle.cc:839] "something else"
"""


def following() -> bool:
    return "startup" in [thread.name for thread in threading.enumerate()]


def test_the_newest_warm_up_line_is_shown_without_the_hosts_prefix():
    """A reader sees which model is how far."""
    assert warmup_line(LOG) == "minilm_onnx: warm-up 2/25 rows=16 sequence=128 301.0 ms"


def test_a_log_without_warm_up_shows_nothing():
    """Before the first bucket there is nothing to say."""
    assert warmup_line("") == ""


def test_startup_is_timed_and_its_thread_ends(tmp_path, monkeypatch):
    """The log may not exist yet when the server starts."""
    clock = iter([10.0, 10.3])
    monkeypatch.setattr(startup, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    console = Console(file=io.StringIO())
    with shown_startup(tmp_path / "server.log", console):
        (tmp_path / "server.log").write_text(LOG)
        assert following()
        time.sleep(0.3)

    assert "tritonserver ready: 0.3 s" in console.file.getvalue()
    assert not following()


def test_a_server_that_does_not_start_is_not_called_ready(tmp_path):
    """The error passes through, the following thread ends."""
    console = Console(file=io.StringIO())
    with pytest.raises(ValueError, match="port"), shown_startup(tmp_path / "log", console):
        raise ValueError("port")

    assert "ready" not in console.file.getvalue()
    assert not following()
