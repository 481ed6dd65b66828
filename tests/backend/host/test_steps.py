"""Steps of sequences, as the host's requests tell them."""

import pytest

from ge_backend.errors import InvalidRequest
from ge_backend.metrics import Recorder
from ge_backend.model.config.sequence_batching import SequenceBatching, State
from ge_backend.serving.batching.request import Request
from ge_backend.serving.sequence.sequencer import Sequencer
from ge_backend.tensors import DATA_TYPES

STATE = State(input="h", output="n", dtype=DATA_TYPES["FP32"], dims=(2,), initial_dims=(2,))
BATCHING = SequenceBatching(strategy="oldest", capacity=2, idle_s=60, controls=(), states=(STATE,))


@pytest.fixture
def module(pb_utils):
    from ge_backend.host import steps

    return steps


def read(index=0):
    return Request(index=index, rows=1, tensors={}, sizes=())


def admit(steps, request):
    """Admit a request's step, as a backend does."""
    from ge_backend.host.steps import sequence_of

    admitted = read()
    steps.sequencer.admit(admitted, sequence_of(request), request.flags(), 0.0)
    return admitted


def test_flags_and_ids_are_the_hosts(module, pb_utils):
    """Bit 1 begins, bit 2 ends; ids are numbers or texts."""
    steps = module.Steps(Sequencer(BATCHING), Recorder())
    begun = admit(steps, pb_utils.InferenceRequest(correlation_id="a", flags=1))
    assert (begun.slot, begun.starting) == (0, True)
    steps.sequencer.settle(0, None, {})
    other = admit(steps, pb_utils.InferenceRequest(correlation_id=7, flags=1))
    assert (other.slot, other.starting) == (1, True)
    steps.sequencer.settle(0, None, {})
    ended = admit(steps, pb_utils.InferenceRequest(correlation_id="a", flags=2))
    assert (ended.slot, ended.starting) == (0, False)
    steps.sequencer.settle(0, None, {})
    with pytest.raises(InvalidRequest):
        admit(steps, pb_utils.InferenceRequest(correlation_id="a"))


def test_what_becomes_of_sequences_is_counted(module, pb_utils):
    """How many live, and how many began, ended or were lost."""
    recorder, sequencer = Recorder(), Sequencer(BATCHING)
    steps = module.Steps(sequencer, recorder)
    for name in (1, 2):
        admit(steps, pb_utils.InferenceRequest(correlation_id=name, flags=1))
        steps.sequencer.settle(0, None, {})
    sequencer.lose_all()
    admit(steps, pb_utils.InferenceRequest(correlation_id=3, flags=3))
    steps.sequencer.settle(0, None, {})
    steps.end_batch()
    assert recorder.drain() == {
        ("ge_sequences_live", ()): 0,
        ("ge_sequences_total", (("event", "begun"),)): 3,
        ("ge_sequences_total", (("event", "lost"),)): 2,
        ("ge_sequences_total", (("event", "ended"),)): 1,
    }
    admit(steps, pb_utils.InferenceRequest(correlation_id=4, flags=1))
    steps.sequencer.settle(0, None, {})
    steps.end_batch()
    assert recorder.drain()["ge_sequences_live", ()] == 1
    steps.end_batch()
    assert recorder.drain() == {}


def test_nobody_lives_in_an_instance_that_begins(module):
    """It says so: one that was killed has left what lived in it."""
    recorder = Recorder()
    module.Steps(Sequencer(BATCHING), recorder)
    assert recorder.drain() == {("ge_sequences_live", ()): 0}


def test_a_request_with_an_error_of_its_own_begins_and_ends_sequences(module, pb_utils):
    """The host does not ask whether its tensors were good."""
    recorder, sequencer = Recorder(), Sequencer(BATCHING)
    steps = module.Steps(sequencer, recorder)
    steps.skip(0, pb_utils.InferenceRequest(correlation_id="a", flags=1))
    assert admit(steps, pb_utils.InferenceRequest(correlation_id="a")).starting
    steps.sequencer.settle(0, None, {})
    steps.skip(0, pb_utils.InferenceRequest(correlation_id="a", flags=2))
    with pytest.raises(InvalidRequest):
        admit(steps, pb_utils.InferenceRequest(correlation_id="a"))


@pytest.mark.parametrize(("given", "ready"), [(0, False), ("", False), (1, True), ("x", True)])
def test_a_place_without_a_sequence_is_not_ready(module, pb_utils, given, ready):
    """Null requests of the direct strategy have the id 0 or none."""
    found = module.sequence_of(pb_utils.InferenceRequest(correlation_id=given))
    assert (found, bool(found)) == (given, ready)


def undecodable():
    return b"bad\xff".decode()


def test_an_id_that_is_no_text_is_refused(module, pb_utils):
    """The host passes on the bytes that came; what is left out has no sequence."""
    steps = module.Steps(Sequencer(BATCHING), Recorder())
    request = pb_utils.InferenceRequest(flags=3)
    request.correlation_id = undecodable
    for ask in (module.sequence_of, lambda request: admit(steps, request)):
        with pytest.raises(
            InvalidRequest, match=r"sequence_id is not UTF-8: .* 0xff in position 3"
        ):
            ask(request)
    steps.skip(0, request)
    steps.end_batch()


def test_nothing_is_an_empty_response(module):
    """The host drops it, whatever it says."""
    assert module.nothing().output_tensors() == []
