"""Stubs that have their executors inside are ended with their server, too."""

import os
import socket

import pytest

from ge_backend.executor.process import inline_reaper
from ge_backend.executor.process.inline_reaper import reap_with_server


@pytest.fixture
def started(monkeypatch):
    """What was started, each of which keeps the name that it was given."""
    commands, kept = [], []

    def start(command, *, pass_fds, **_):
        commands.append(command)
        kept.append(socket.socket(fileno=os.dup(pass_fds[0])))

    monkeypatch.setattr(inline_reaper.subprocess, "Popen", start)
    yield commands
    for name in kept:
        name.close()


def test_one_is_started_for_a_server(started, monkeypatch):
    """Whichever of its stubs comes first."""
    monkeypatch.setattr(inline_reaper.reap_orphans, "server_of", lambda _: os.getpid())
    reap_with_server()
    reap_with_server()
    assert [command[-1] for command in started] == [str(os.getpid())]


def test_what_is_no_stub_starts_none(started):
    """Such as a command that opens a model in its own process."""
    reap_with_server()
    assert started == []
