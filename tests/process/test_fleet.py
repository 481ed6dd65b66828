"""Two executors under one model instance: whichever dies or stays away, no run fails for it."""

import threading
from dataclasses import replace

import pytest

from builders.attempts import runs_of
from builders.null_models import DEADLY, SHORT, comes_true, deadly, order, sums, write_null
from fakes.null_faults import GONE
from ge_backend.errors import ExecutorLost, Status
from ge_backend.serving.fleet.fleet import Fleet

DEVICES = ("null", "null:1")


class Two:
    """A fleet over the executors of two null devices."""

    def __init__(self, machine, source, gone):
        self.machine, self.gone = machine, gone
        self.sessions = {d: machine.session(source, device=d) for d in DEVICES}
        self.fleet = Fleet(self.sessions, SHORT)
        for session in self.sessions.values():
            session.fleet = self.fleet

    def run(self, *values, costs=None):
        """Return the sums in the order of the values, or errors' names, and what ended."""

        def stage(session, chosen, *, again):
            session.reserve(128 * len(chosen), keep=again)
            return [order(session, values[index]) for index in chosen]

        ended = list(runs_of(self.fleet, costs or [1e6] * len(values), stage))
        ended.sort(key=lambda end: end.index)
        assert [end.index for end in ended] == list(range(len(values)))
        return sums([end.outcome for end in ended]), ended

    def devices(self, count):
        """Return which devices so many equal runs use."""
        return {end.device for end in self.run(*range(count))[1]}

    def up(self):
        return [state.up for state in self.fleet.states()]

    def kill(self, device):
        for process in self.machine.executors():
            if f"--device={device}" in process.info["cmdline"]:
                process.kill()

    def lose(self, device):
        """Kill a device's executor and let no other open the device."""
        (self.gone / device.partition(":")[2].zfill(1)).touch()
        self.kill(device)

    def give_back(self, device):
        (self.gone / device.partition(":")[2].zfill(1)).unlink()


@pytest.fixture
def gone(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.setenv(GONE, str(folder))
    return folder


@pytest.fixture
def two(machine, tmp_path, gone):
    source = write_null(tmp_path / "model.null", cost_ms={"*": 10}, faults=[deadly()])
    return Two(machine, source, gone)


def test_each_device_has_an_executor_of_its_own(two):
    """Both are used, and each sees what the other model instances have sent."""
    assert len(two.machine.executors()) == 2
    assert two.devices(4) == set(DEVICES)
    assert [state.outstanding_ns for state in two.fleet.states()] == [0, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_killed_executor_costs_no_run(two, device):
    """Whichever it is, under load: its runs are made elsewhere, and it comes back."""
    timer = threading.Timer(0.03, two.kill, [device])
    timer.start()
    values = range(1, 21)
    assert two.run(*values)[0] == [3.0 * value for value in values]
    timer.join()
    assert comes_true(lambda: (two.run(1), two.machine.restarts)[1] == 1)
    assert comes_true(lambda: all(two.up()), 20)
    assert two.devices(6) == set(DEVICES)


def test_a_device_that_cannot_be_opened_is_done_without_until_it_can(two):
    """No run fails meanwhile, and nobody has to do anything for it to come back."""
    two.lose("null:1")
    for _ in range(3):
        assert two.run(1, 2, 3, 4)[0] == [3, 6, 9, 12]
    assert two.up() == [True, False]
    assert two.devices(6) == {"null"}
    two.give_back("null:1")
    assert comes_true(lambda: all(two.up()), 20)
    assert two.devices(6) == set(DEVICES)


def test_all_devices_lost_is_unavailable_and_passes(two):
    """Requests get the reasons of all; then it goes on by itself."""
    for device in DEVICES:
        two.lose(device)
    _, ended = two.run(1, 2)
    assert {end.outcome.error.status for end in ended} == {Status.UNAVAILABLE}
    assert all(f"device null:{n} is gone" in str(ended[0].outcome.error) for n in (0, 1))
    assert not two.fleet.ready
    two.give_back("null")
    assert comes_true(lambda: two.fleet.ready, 20)
    assert two.run(5)[0] == [15]
    two.give_back("null:1")
    assert comes_true(lambda: all(two.up()), 20)


def test_a_run_that_always_kills_fails_alone(two):
    """It takes an executor on either device with it; its neighbours are answered."""
    found, ended = two.run(1, 2, DEADLY, 4, 5)
    assert found == [3, 6, "ExecutorLost", 12, 15]
    assert "repeated with nothing else running" in str(ended[2].outcome.error)
    assert isinstance(ended[2].outcome.error, ExecutorLost)
    assert two.machine.restarts == 2
    assert two.run(6, 7)[0] == [18, 21]


def test_a_second_model_on_the_same_devices_sees_what_the_first_has_sent(two, machine, tmp_path):
    """Its work goes where less is outstanding, whoever sent it."""
    held = tmp_path / "held"
    slow = write_null(
        tmp_path / "slow.null", faults=[{"on": "run", "do": "hold", "file": str(held)}]
    )
    other = machine.session(slow, device="null")
    other.reserve(1024)
    in_flight = other.in_flight()
    in_flight.submit(0, replace(order(other, 1), cost_ns=10**10))
    assert comes_true(lambda: two.fleet.states()[0].outstanding_ns >= 10**10)
    assert two.devices(4) == {"null:1"}
    assert comes_true(held.exists)
    held.unlink()
    in_flight.drain()
    assert two.fleet.states()[0].outstanding_ns == 0
    assert two.devices(4) == set(DEVICES)
