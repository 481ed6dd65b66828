"""Runs as trace events."""

import json

from builders.recordings import MS, RUNS, SECOND
from ge_tools.page.trace import trace
from ge_tools.watch.executors import DeviceRuns


def events(*runs):
    text = trace([DeviceRuns(device="cpu", pid=7, runs=runs, missed=0)])
    return json.loads(text)["traceEvents"]


def test_a_run_is_an_event_of_its_lane():
    """In microseconds, with what a person wants to know of it."""
    (ran,) = [event for event in events(RUNS[0]) if event["ph"] == "X"]
    assert (ran["name"], ran["pid"], ran["tid"]) == ("encoder 4x8", 7, 1)
    assert (ran["ts"], ran["dur"]) == ((10 * SECOND + 1 * MS) / 1e3, 4000)
    assert ran["args"]["real rows"] == 3


def test_what_waited_is_beside_the_lanes():
    """Several wait at once, which one thread's events could not show."""
    waits = [event for event in events(*RUNS) if event["ph"] in "be"]
    assert [(event["ph"], event["id"]) for event in waits] == [
        ("b", 1),
        ("e", 1),
        ("b", 2),
        ("e", 2),
    ]
    assert waits[1]["ts"] - waits[0]["ts"] == 1000


def test_executors_and_lanes_have_their_names():
    """As in the page."""
    named = [event["args"]["name"] for event in events(*RUNS) if event["ph"] == "M"]
    assert named == ["executor cpu", "lane-0", "lane-1"]


def test_a_preparation_is_called_one():
    """It has no bucket."""
    (ran,) = [event for event in events(RUNS[3]) if event["ph"] == "X"]
    assert ran["name"] == "encoder preparation"
