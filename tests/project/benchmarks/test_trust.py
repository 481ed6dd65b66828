"""The table of faults counts what clients saw."""

import mmap
import os
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.trust import __main__ as command
from benchmarks.trust import faults, load
from benchmarks.trust.faults import FAULTS
from benchmarks.trust.load import Answer, Load, ask
from benchmarks.trust.soak import Sample, sample, slopes, verdict
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


def test_a_server_that_stays_away_has_a_gap_until_the_end():
    """Until its clients are told to stop, which is before the last of them has its answer."""
    answers = [answer(1.0), answer(1.2), *(answer(float(at), "error") for at in range(2, 32))]
    found = figures_of("x", [*answers, answer(60.0, "lost")], ended_s=31.0)
    assert found.recovery_s == found.silent_s == pytest.approx(29.8)
    assert figures_of("x", [answer(1.0), answer(9.1)], ended_s=9.0).silent_s == 0


def test_a_server_that_never_answers_has_a_gap_from_the_first_request():
    """There is no right answer that it could begin at."""
    found = figures_of("x", [answer(1.0, "error", 0.5), answer(2.0, "error")], ended_s=3.0)
    assert (found.recovery_s, found.silent_s) == (2.5, 2.5)


def test_the_answers_of_others_hide_no_gap():
    """Those of a second server, say: they count, but the first one has been away."""
    found = figures_of("x", [answer(1.0), answer(4.0)], further=[answer(2.0), answer(3.0, "error")])
    assert (found.requests, found.right, found.errors) == (4, 3, 1)
    assert found.recovery_s == pytest.approx(3.0)


class Client:
    """Answers with these values as `y`; None: without an output."""

    def __init__(self, values):
        self._values = values

    def infer(self, *_, **__):
        values = self._values
        return SimpleNamespace(as_numpy=lambda name: values() if callable(values) else values)

    def close(self):
        pass


def unreadable():
    raise ValueError("cannot reshape array of size 3 into shape (1,)")


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        (np.array([16.0], np.float32), "right"),
        (np.array([15.0], np.float32), "wrong"),
        (np.array([16.0, 16.0], np.float32), "wrong"),
        (None, "wrong"),
        (unreadable, "wrong"),
    ],
)
def test_an_answer_that_is_not_the_sum_is_wrong(values, outcome):
    """One without its output, and one that cannot be read, too."""
    assert ask(Client(values), 8).outcome == outcome


def test_a_request_that_is_never_counted_is_lost(monkeypatch):
    """Whatever its client died of."""
    asked = threading.Barrier(4)

    def die(client, number, *, timeout_us):
        asked.wait(20)
        raise RuntimeError("this client is no more")

    monkeypatch.setattr(load, "ask", die)
    monkeypatch.setattr(load.grpcclient, "InferenceServerClient", lambda url: Client(None))
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    clients = Load("nowhere:1", 3)
    asked.wait(20)  # one that has not asked yet when they are closed has lost nothing
    assert [one.outcome for one in clients.close()] == ["lost"] * 3


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
    [
        ({}, 0),
        ({"lost": 1}, 1),
        ({"wrong": 1}, 1),
        ({"errors": 1}, 1),
        ({"right": 0}, 1),
        ({"silent_s": 0.9}, 0),
        ({"silent_s": 1.1}, 1),
        ({"run": 9}, 0),
        ({"run": 10}, 1),
    ],
)
def test_what_should_not_be_ends_with_one(monkeypatch, capsys, changes, code):
    """A lost or a wrong answer, an error where none is needed, none at the end, one run twice."""
    figures = {"requests": 9, "right": 9, "errors": 0, "lost": 0, "wrong": 0} | changes

    def tried(fault, **_):
        return Figures(name=fault.name, recovery_s=1.26, longest_s=2, **figures)

    monkeypatch.setattr(command, "tried", tried)
    monkeypatch.setattr("sys.argv", ["trust", "--only", "killed three times"])
    assert command.main() == code
    printed = capsys.readouterr()
    assert f"| executor killed three times | 9 | {figures['right']} |" in printed.out
    assert len({line.count("|") for line in printed.out.splitlines()}) == 1
    assert ("not as it should be" in printed.err) == bool(code)


@pytest.mark.parametrize(("well", "code"), [(True, 0), (False, 1)])
def test_a_soak_that_is_not_well_ends_with_one(monkeypatch, capsys, well, code):
    """As a row of the table does."""
    monkeypatch.setattr(command, "_is_well", lambda *_: True)
    monkeypatch.setattr(command, "soak", lambda clients, seconds: ("soak of 9 s", well))
    monkeypatch.setattr("sys.argv", ["trust", "--only", "disk full", "--soak", "9"])
    assert command.main() == code
    printed = capsys.readouterr()
    assert "soak of 9 s" in printed.out
    assert ("not as it should be: soak" in printed.err) == bool(code)


def test_a_row_that_is_tried_alone_soaks_nothing(monkeypatch):
    """Its process got all arguments of the one that soaks."""
    monkeypatch.setattr(command, "_is_well", lambda *_: True)
    monkeypatch.setattr(command, "soak", lambda *_: pytest.fail("it soaked"))
    monkeypatch.setattr("sys.argv", ["trust", "--soak", "9", "--alone", "--only", "disk full"])
    assert command.main() == 0


def test_a_fault_that_is_not_there_is_refused(monkeypatch, capsys):
    """A typo would try nothing and say that all is well."""
    monkeypatch.setattr("sys.argv", ["trust", "--only", "disk fool"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "no fault has 'disk fool' in its name" in capsys.readouterr().err


def test_the_clients_of_a_second_server_count(monkeypatch):
    """Its executor is killed, and they shall notice no more of it than those of the first."""
    server = SimpleNamespace(grpc="nowhere:1", directory=SimpleNamespace(run="nowhere"))
    asked = SimpleNamespace(close=lambda: [answer(1.0, "error")])
    monkeypatch.setattr(faults, "serving", lambda: faults.contextlib.nullcontext(server))
    monkeypatch.setattr(faults, "Load", lambda *_: asked)
    monkeypatch.setattr(faults, "executors", lambda _: [])
    monkeypatch.setattr(faults.time, "sleep", lambda _: None)
    (fault,) = (fault for fault in FAULTS if fault.name.startswith("second server"))
    assert [one.outcome for one in fault.strike(server)] == ["error"]


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


def test_a_sample_sees_shared_memory():
    """The arena lies there: a leak of it would not be memory of a process's own."""
    before = sample([os.getpid()]).memory_mib
    with mmap.mmap(-1, 64 << 20) as pages:
        pages.write(b"x" * (64 << 20))
        assert sample([os.getpid()]).memory_mib > before + 60


RIGHT = Counter(right=9)
# What an honest server had in the second minute of a soak.
STEADY = [Sample(57.0 + at / 10, 89.0, 80.0 + at % 2) for at in range(4)]


@pytest.mark.parametrize(
    ("counts", "samples", "well", "said"),
    [
        (RIGHT, STEADY, True, "9 of 9 right"),
        (RIGHT + Counter(wrong=1), STEADY, False, "9 of 10 right"),
        (Counter(), STEADY, False, "0 of 0 right"),
        (RIGHT, STEADY[:2], True, "too short"),
        (RIGHT, [], True, "too short"),
        (RIGHT, [Sample(57.0, 89.0 + 40 * at, 80.0) for at in range(4)], False, "descriptors 209"),
        (RIGHT, [Sample(57.0, 89.0, 80.0 + 40 * at) for at in range(4)], False, "threads 200"),
        (RIGHT, [Sample(57.0 + 90 * at, 89.0, 80.0) for at in range(4)], False, "memory 327 MiB"),
    ],
)
def test_a_soak_is_well_if_all_is_right_and_nothing_runs_away(counts, samples, well, said):
    """Too few samples say nothing of growth, whatever line goes through them."""
    times = [30.0 + 30 * at for at in range(len(samples))]
    text, found = verdict(120, counts, times, samples)
    assert found is well
    assert said in text
