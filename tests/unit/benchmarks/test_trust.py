"""The table of faults counts what clients saw."""

import pytest
from benchmarks.trust import __main__ as command
from benchmarks.trust.faults import FAULTS
from benchmarks.trust.load import Answer
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
    monkeypatch.setattr("sys.argv", ["trust", "--only", "executor killed"])
    assert command.main() == code
    printed = capsys.readouterr()
    assert "| executor killed | 9 | 9 |" in printed.out
    assert ("not as it should be" in printed.err) == bool(code)


def test_faults_have_names_of_their_own():
    """A row of the table is one fault."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
