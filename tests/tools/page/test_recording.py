"""Watching a server, made up."""

from dataclasses import replace

import pytest

from builders.recordings import RUNS, look, reading
from ge_backend.errors import ServerError
from ge_tools.page import recording as module
from ge_tools.page.recording import NOT_HERE, record
from ge_tools.watch.executors import DeviceRuns

URL = "http://localhost:8002/metrics"


class Watch:
    """Executors that ran four runs."""

    note = ""
    devices = (DeviceRuns(device="cpu", pid=1, runs=RUNS, missed=0),)
    closed = 0

    def __init__(self, url):
        assert url == URL

    def look(self):
        return 4

    def close(self):
        Watch.closed += 1
        return list(self.devices)


@pytest.fixture
def server(monkeypatch):
    """A server that works a third more at each look; time goes on by sleeping."""
    state = {"now": 100.0, "looks": 0, "served": 1 / 3}

    def scrape(url):
        assert url == URL
        state["looks"] += 1
        return reading(state["now"], state["served"] * (state["looks"] - 1))

    def sleep(seconds):
        state["now"] += seconds

    monkeypatch.setattr(module, "scrape", scrape)
    monkeypatch.setattr(module, "RunWatch", Watch)
    monkeypatch.setattr(module.time, "sleep", sleep)
    monkeypatch.setattr(module.time, "monotonic", lambda: state["now"])
    monkeypatch.setattr(Watch, "closed", 0)
    return state


def test_it_looks_once_a_second_and_says_so(server):
    """The last look is at the end, not before."""
    said = []
    seen = record(URL, 2.5, said.append)
    assert [r.at_s for r in seen.readings] == [100, 101, 102, 102.5]
    assert seen.seconds == 2.5
    assert said[0] == "1 of 2.5 s: 33 requests, 4 runs"
    assert seen.devices == Watch.devices
    assert seen.note == ""
    assert Watch.closed == 1


def test_a_host_and_its_port_are_enough(server):
    """Of the executors, too, which are found by the port."""
    seen = record("localhost:8002", 1.0, lambda text: None)
    assert (seen.url, seen.devices) == (URL, Watch.devices)


def test_a_server_that_did_nothing_has_nothing_to_report(server, monkeypatch):
    """What to do is in the message, and the executors are left."""
    server["served"] = 0
    monkeypatch.setattr(Watch, "devices", ())
    with pytest.raises(ServerError, match=r"took a request or ran in 2 s.*--seconds"):
        record(URL, 2.0, lambda text: None)
    assert Watch.closed == 1


def test_runs_are_something_to_report(server):
    """Of requests that came before."""
    server["served"] = 0
    assert record(URL, 2.0, lambda text: None).devices == Watch.devices


def test_an_executor_without_runs_is_not(server, monkeypatch):
    """It is there, and that is all."""
    server["served"] = 0
    monkeypatch.setattr(Watch, "devices", (replace(Watch.devices[0], runs=()),))
    with pytest.raises(ServerError, match="nothing to report"):
        record(URL, 2.0, lambda text: None)


def test_steps_of_texts_are_something_to_report(server, monkeypatch):
    """Texts may be written for longer than anybody watches, by an executor that is elsewhere."""
    monkeypatch.setattr(Watch, "devices", ())
    monkeypatch.setattr(
        module, "scrape", lambda url: look(server["now"], ge_text_steps_total=server["now"])
    )
    assert record(URL, 2.0, lambda text: None).seconds == 2


def test_a_server_that_ends_meanwhile_leaves_what_was_seen(server, monkeypatch):
    """Two looks are a recording; one is none."""
    scrape = module.scrape

    def ending(url):
        if server["looks"] == server["lives"]:
            raise ServerError("no metrics at its address")
        return scrape(url)

    monkeypatch.setattr(module, "scrape", ending)
    server["lives"] = 2
    seen = record(URL, 9.0, lambda text: None)
    assert seen.seconds == 1
    assert seen.note == "The recording ends early: no metrics at its address"
    server["looks"], server["lives"] = 0, 1
    with pytest.raises(ServerError, match="no metrics"):
        record(URL, 9.0, lambda text: None)


def test_a_server_that_ends_before_it_did_anything_is_told(server, monkeypatch):
    """To watch longer would be of no use; the time is that which passed."""
    scrape, server["served"] = module.scrape, 0

    def ending(url):
        if server["looks"] == 3:
            raise ServerError("no metrics at its address")
        return scrape(url)

    monkeypatch.setattr(module, "scrape", ending)
    monkeypatch.setattr(Watch, "devices", ())
    with pytest.raises(ServerError, match=r"ran in 2 s, .*: no metrics at its address$") as caught:
        record(URL, 9.0, lambda text: None)
    assert "--seconds" not in str(caught.value)


def test_executors_elsewhere_are_said_to_be_missing(server, monkeypatch):
    """A page without timelines says why; another user's server cannot be told from none."""
    monkeypatch.setattr(Watch, "devices", ())
    assert record(URL, 1.0, lambda text: None).note == NOT_HERE
    assert "as another user" in NOT_HERE


def test_executors_that_cannot_be_asked_say_why(server, monkeypatch):
    """Such as those of another user."""
    monkeypatch.setattr(Watch, "note", "the executor of cpu cannot be asked: another user's")
    assert "another user's" in record(URL, 1.0, lambda text: None).note
