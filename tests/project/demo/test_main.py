from __future__ import annotations

import os
import signal

import pytest
from demo import __main__ as program

from ge_backend.errors import ServerError


@pytest.fixture(autouse=True)
def unchanged_signals():
    """`main` takes SIGTERM; put back what pytest had."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(monkeypatch, outcome) -> int:
    def replacement(*_):
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(program, "_run", replacement)
    return program.main([])


@pytest.mark.parametrize(("right", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_says_whether_every_result_was_right(monkeypatch, right, code):
    """Other programs can rely on it."""
    assert run(monkeypatch, right) == code


def test_a_server_that_fails_is_told_in_one_line(monkeypatch, capsys):
    """No traceback; brackets of the server's log are no markup."""
    assert run(monkeypatch, ServerError("no tritonserver [/x] found")) == 1
    assert "failed: no tritonserver [/x] found" in capsys.readouterr().out


@pytest.mark.parametrize("said", [None, "example.org"])
def test_its_own_server_is_asked_by_no_proxy(monkeypatch, said):
    """Which could not reach this machine; afterwards the environment is as it was."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    if said:
        monkeypatch.setenv("no_proxy", said)
    during = []
    monkeypatch.setattr(program, "_run", lambda *_: during.append(os.environ["no_proxy"]))
    program.main([])
    assert during == ["example.org,127.0.0.1" if said else "127.0.0.1"]
    assert os.environ.get("no_proxy") == said


def test_interrupting_ends_with_the_shells_code(monkeypatch):
    """130 is what shells give a program that ^C ended."""
    assert run(monkeypatch, KeyboardInterrupt()) == 130


def test_sigterm_is_treated_as_an_interrupt(monkeypatch):
    """So that the server is stopped and the temporary folder removed then, too."""
    monkeypatch.setattr(program, "_run", lambda *_: signal.raise_signal(signal.SIGTERM))

    assert program.main([]) == 130


@pytest.mark.parametrize("flag", ["--rounds", "--concurrency"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_senseless_loads_are_refused(flag, value, capsys):
    """Nothing is started for them."""
    with pytest.raises(SystemExit) as ended:
        program.main([f"{flag}={value}"])

    assert ended.value.code == 2
    assert "whole number from 1 up" in capsys.readouterr().err
