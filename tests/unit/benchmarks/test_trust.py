"""The table of faults counts what clients saw."""

import os
from types import SimpleNamespace

import pytest
from benchmarks.trust import __main__ as command
from benchmarks.trust.faults import FAULTS
from benchmarks.trust.load import Answer
from benchmarks.trust.soak import Sample, sample, slopes
from benchmarks.trust.trial import Figures, figures_of


def answer(done_s, outcome="right", took_s=0.01):
    return Answer(sent_s=done_s - took_s, done_s=done_s, outcome=outcome)


def test_every_outcome_is_counted():
    """And the longest time without a right answer is the recovery."""
    answers = [answer(0.1), answer(0.2), answer(0.5, "error"), answer(1.9, took_s=1.8)]
    answers += [answer(2.0), answer(2.1, "lost", 2.0), answer(2.1, "wrong")]
    found = figures_of("x", answers)
    assert (found.requests, found.right, found.errors) == (7, 4, 1)
    assert (found.lost, found.wrong) == (1, 1)
    assert found.recovery_s == pytest.approx(1.7)
    assert found.longest_s == pytest.approx(2.0)


def test_all_is_as_usual_after_the_last_odd_answer():
    """One that is not right, or takes more than a second, of all that come after the fault."""
    answers = [answer(1.0, "error"), answer(3.0, took_s=1.5), answer(9.0)]
    assert figures_of("x", answers, struck_s=2.5).settled_s == pytest.approx(0.5)
    assert figures_of("x", answers, struck_s=5.0).settled_s == 0
    assert figures_of("x", [answer(1.0)], struck_s=0.5).settled_s == 0


def test_short_gaps_are_none():
    """A busy machine has those without any fault."""
    assert figures_of("x", [answer(0.1), answer(0.3)]).recovery_s == 0
    assert figures_of("x", []).requests == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, 0), ({"lost": 1}, 1), ({"wrong": 1}, 1), ({"errors": 1}, 1)],
)
def test_what_should_not_be_ends_with_one(monkeypatch, capsys, changes, code):
    """A lost or a wrong answer, or an error where none is needed."""
    figures = {"requests": 9, "right": 9, "errors": 0, "lost": 0, "wrong": 0} | changes

    def tried(fault, **_):
        return Figures(name=fault.name, recovery_s=1.26, longest_s=2, **figures)

    monkeypatch.setattr(command, "tried", tried)
    monkeypatch.setattr("sys.argv", ["trust", "--only", "killed three times"])
    assert command.main() == code
    printed = capsys.readouterr()
    assert "| executor killed three times | 9 | 9 |" in printed.out
    assert len({line.count("|") for line in printed.out.splitlines()}) == 1
    assert ("not as it should be" in printed.err) == bool(code)


def test_faults_have_names_of_their_own():
    """A row of the table is one fault."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize(("status", "code"), [(0, 0), (1, 1), (32, 0)])
def test_small_disks_are_tried_where_nobody_else_sees_them(monkeypatch, capsys, status, code):
    """In a process of its own; where that may not mount, the row says so."""
    asked = []

    def run(command, **_):
        asked.append(command)
        return SimpleNamespace(returncode=status)

    monkeypatch.setattr(command.subprocess, "run", run)
    monkeypatch.setattr("sys.argv", ["trust", "--only", "disk full", "--clients", "4"])
    assert command.main() == code
    (line,) = asked
    assert line[:2] == ["unshare", "--mount"]
    assert line[-3:] == ["--alone", "--only", "disk full, executor killed"]
    assert ("no rights to mount" in capsys.readouterr().out) == (status == 32)


def test_a_slope_is_what_grows_in_an_hour():
    """Of each figure by itself."""
    samples = [Sample(100.0 + at, 10.0, 7.0 - at / 2) for at in range(4)]
    growth = slopes([0, 900, 1800, 2700], samples)
    assert growth.memory_mib == pytest.approx(4)
    assert growth.descriptors == pytest.approx(0)
    assert growth.threads == pytest.approx(-2)


def test_a_sample_adds_processes_up():
    """One that has ended counts nothing."""
    own = sample([os.getpid()])
    assert own.memory_mib > 5
    assert own.threads >= 1
    assert sample([os.getpid(), os.getpid(), 2**22 + 1]).threads >= 2 * own.threads - 1
