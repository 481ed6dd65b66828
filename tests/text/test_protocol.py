"""Messages of the service `generation` survive the way through posts, and deltas join."""

import dataclasses

import pytest

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.wire import MAX_MESSAGE_BYTES
from ge_text import protocol as messages
from ge_text.engine.figures import HistogramFigures
from ge_text.protocol import (
    Abort,
    Delta,
    Parts,
    RequestFailed,
    Sample,
    ServiceSpec,
    StatsReply,
    StatsRequest,
    Submit,
    TokenUpdates,
    joined,
    parts_of,
)

SUBMIT = Submit(number=3, text="naïve", ids=(1, 2), parameters="{}", seed=2**62, timeout_s=1.5)
DELTA = Delta(number=3, sample=0, text="a", ids=(5,), cumulative=-1.0, prompt_tokens=4)
EVERY = (
    SUBMIT,
    dataclasses.replace(SUBMIT, samples=(Sample(ids=(7, 8)), Sample(ended=True))),
    Abort(number=3),
    StatsRequest(),
    TokenUpdates(deltas=(DELTA,)),
    RequestFailed(number=3, error="QueueFull", message="full"),
    StatsReply(
        levels={"running": 2.0},
        counts={"steps": 3},
        histograms={"step": HistogramFigures(bounds=(0.1,), counts=(1, 0), total=0.05)},
    ),
)


@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_a_message_comes_out_as_it_went_in(message):
    """A short message is one post."""
    (body,) = parts_of(message)
    assert Parts().take(body) == message


def test_a_long_prompt_goes_in_parts_that_each_fit():
    """Only the last part completes the message; the next one begins afresh."""
    long = dataclasses.replace(SUBMIT, text="x" * (3 * MAX_MESSAGE_BYTES))
    parts = Parts()
    *first, last = parts_of(long)
    assert len(first) == 3
    assert all(len(body) < MAX_MESSAGE_BYTES for body in (*first, last))
    assert [parts.take(body) for body in first] == [None] * 3
    assert parts.take(last) == long
    assert parts.take(*parts_of(SUBMIT)) == SUBMIT


def test_parts_without_end_are_refused(monkeypatch):
    """What is gathered has a bound."""
    monkeypatch.setattr(messages, "MAX_BYTES", 100)
    with pytest.raises(ProtocolError, match="more than 100 bytes"):
        Parts().take(b"+" + b"x" * 101)


def test_what_is_no_message_is_refused():
    """Neither JSON nor a type that the service does not know is guessed at."""
    with pytest.raises(ProtocolError):
        Parts().take(b".{")
    with pytest.raises(ProtocolError):
        Parts().take(b'.{"type":"Run"}')


def test_deltas_join_in_their_order():
    """Text and tokens add up, and the later one says how it stands."""
    later = dataclasses.replace(DELTA, text="b", ids=(6,), cumulative=-3.0, finish="stop")
    assert joined([DELTA, later]) == dataclasses.replace(later, text="ab", ids=(5, 6))


@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        ((), (), ()),
        (("1",), ("2", "3"), ("1", "2", "3")),
        ((), ("2",), ("2",)),
        (("1",), (), ("1",)),
    ],
)
def test_lists_of_log_probabilities_join(first, second, whole):
    """A sample that ended without a token has nothing to add."""
    before, after = (dataclasses.replace(DELTA, logprobs=each) for each in (first, second))
    assert joined([before, after]).logprobs == whole


def test_a_key_names_all_that_is_served():
    """Two models with other settings are two services."""
    spec = ServiceSpec(
        folder="/m/1",
        stamp="s",
        precision="bf16",
        threads=2,
        priority=1,
        served_as="m",
        settings={"block_size": "16"},
    )
    assert ServiceSpec.of(spec.key()) == spec
    assert dataclasses.replace(spec, settings={"block_size": "8"}).key() != spec.key()
    with pytest.raises(ProtocolError):
        ServiceSpec.of("{}")
