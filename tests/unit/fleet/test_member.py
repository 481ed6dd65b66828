"""A lost device is tried again and again, less and less often, until it is back or not wanted."""

import threading

import pytest

from builders.null_models import comes_true
from ge_backend.errors import DeviceUnavailable, ExecutorLost
from ge_backend.fleet import member as member_module
from ge_backend.fleet.member import PATIENCE, Member, Pauses

GONE = ExecutorLost("gone")


class FakeSession:
    """Fails to reopen as often as there are failures, and counts."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.attempts, self.lost, self.closed = 0, [], 0

    def lose(self, error):
        self.lost.append(error)

    def reopen(self):
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)

    def close(self):
        self.closed += 1


@pytest.fixture
def lost(monkeypatch):
    """Returns a function from failures to a member that was lost, and the pauses that it made."""
    members = []

    def make(*failures):
        pauses = Pauses(first_s=1.0, most_s=5.0)
        member = Member("null:1", FakeSession(*failures), threading.Condition(), pauses)
        members.append(member)
        made = []
        monkeypatch.setattr(member._stop, "wait", lambda seconds: made.append(seconds) or False)
        member.lose(GONE)
        return member, made

    yield make
    for member in members:
        member.close()


def test_a_member_is_up_until_it_is_lost():
    """And belongs to who runs batches."""
    member = Member("null", FakeSession(), threading.Condition(), Pauses())
    assert (member.up, member.failure) == (True, None)
    member.close()
    assert member.session.closed == 1


def test_a_device_that_can_be_had_at_once_is_back_at_once(lost, caplog):
    """A restart is no news beyond the line that says so."""
    member, pauses = lost()
    assert comes_true(lambda: member.up)
    assert (member.session.lost, member.session.attempts, pauses) == ([GONE], 1, [])
    assert "is back" not in caplog.text


def test_pauses_grow_up_to_a_limit(lost, caplog):
    """Each is twice the one before; the log has a line for every attempt, and one at the end."""
    failures = [DeviceUnavailable(f"not today {n}") for n in range(5)]
    member, pauses = lost(*failures)
    assert comes_true(lambda: member.up)
    assert pauses == [1, 2, 4, 5, 5]
    assert all(f"not today {n}" in caplog.text for n in range(5))
    assert caplog.text.count("device null:1 is back") == 1
    assert member.failure is None


def test_executors_that_die_over_it_are_not_the_devices_fault(lost):
    """Other stubs' runs may have killed them; so many deaths in a row are."""
    member, pauses = lost(*[GONE] * (PATIENCE - 1))
    assert comes_true(lambda: member.up)
    assert pauses == []
    member, pauses = lost(*[GONE] * PATIENCE)
    assert comes_true(lambda: member.up)
    assert pauses == [1]


def test_something_unforeseen_is_a_failure_like_any_other(lost, caplog):
    """The thread that brings devices back does not end over it."""
    member, pauses = lost(ZeroDivisionError("oops"))
    assert comes_true(lambda: member.up)
    assert pauses == [1]
    assert "ZeroDivisionError: oops" in caplog.text


def test_whoever_waits_is_told_of_failures_and_of_the_return():
    """Both end a wait for the member."""
    changed, go = threading.Condition(), threading.Event()
    session = FakeSession()

    def reopen():
        session.attempts += 1
        if session.attempts == 1:
            raise DeviceUnavailable("not yet")
        go.wait(10)

    session.reopen = reopen
    member = Member("null:1", session, changed, Pauses(first_s=0.01))
    member.lose(GONE)
    with changed:
        assert changed.wait_for(lambda: member.failure is not None, 10)
        assert (member.up, str(member.failure)) == (False, "not yet")
        go.set()
        assert changed.wait_for(lambda: member.up, 10)
    assert member.failure is None
    member.close()


class SlowSession(FakeSession):
    """Reopens when it is told to; then it fails or not."""

    def __init__(self, *failures):
        super().__init__(*failures)
        self.begun, self.go = threading.Event(), threading.Event()

    def reopen(self):
        self.begun.set()
        self.go.wait(10)
        super().reopen()


def reopening(session):
    """Return a member in the midst of its first attempt to reopen."""
    member = Member("null:1", session, threading.Condition(), Pauses())
    member.lose(GONE)
    assert session.begun.wait(10)
    return member


def test_a_member_that_is_closed_while_lost_is_closed_by_its_thread(monkeypatch):
    """As soon as the attempt that is being made has ended; one that takes long keeps nobody."""
    monkeypatch.setattr(member_module, "LEAVE_S", 0.05)
    session = SlowSession()
    reopening(session).close()
    assert session.closed == 0
    session.go.set()
    assert comes_true(lambda: session.closed == 1)


def test_closing_waits_for_the_attempt_that_is_being_made():
    """So that what it has started is left again when the model is gone."""
    session = SlowSession()
    member = reopening(session)
    threading.Timer(0.2, session.go.set).start()
    member.close()
    assert (session.attempts, session.closed, member.up) == (1, 1, True)


def test_a_process_that_ends_waits_for_no_device():
    """One that is lost may take its time, or never come back."""
    session = SlowSession()
    member = reopening(session)
    threads = [thread for thread in threading.enumerate() if thread.name == "reopen null:1"]
    assert threads
    assert all(thread.daemon for thread in threads)
    session.go.set()
    member.close()


def test_a_member_that_is_closed_is_not_reopened_again():
    """An attempt is many, where executors die over it; each starts processes."""
    session = SlowSession(*[GONE] * PATIENCE)
    member = reopening(session)
    threading.Timer(0.2, session.go.set).start()
    member.close()
    assert (session.attempts, session.closed) == (1, 1)


def test_a_member_that_is_lost_when_it_is_closed_is_not_reopened_at_all():
    """Its thread may get its turn only then, and would start an executor that nobody needs."""
    member = Member("null:1", FakeSession(), threading.Condition(), Pauses())
    member.close()
    member.lose(GONE)
    assert comes_true(lambda: member.session.closed == 2)
    assert member.session.attempts == 0


def test_a_member_that_no_thread_can_reopen_is_lost_again_later(monkeypatch):
    """A full process table is no reason never to come back, nor to fail when it is closed."""
    member = Member("null:1", FakeSession(), threading.Condition(), Pauses())
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            member.lose(GONE)
    member.lose(GONE)
    assert comes_true(lambda: member.up and member.session.attempts == 1)
    member.close()


def no_thread(self):
    raise RuntimeError("can't start new thread")


def test_losing_what_is_lost_already_starts_nothing(lost):
    """One thread brings it back."""
    gate = threading.Event()
    member, _ = lost()
    assert comes_true(lambda: member.up)
    member.session.reopen = lambda: gate.wait(10)
    member.lose(GONE)
    member.lose(GONE)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("reopen null:1") == 1
    gate.set()
    assert comes_true(lambda: member.up)
