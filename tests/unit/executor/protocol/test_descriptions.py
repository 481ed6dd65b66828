"""Signatures and states cross the process border as messages."""

from hypothesis import given
from hypothesis import strategies as st

from ge_backend.config.sequence_batching import State
from ge_backend.executor.protocol.descriptions import SignatureMessage, StateMessage
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec

SPECS = st.lists(st.tuples(st.integers(-1, 9), st.text(max_size=3)), max_size=4).flatmap(
    lambda dims: st.builds(
        TensorSpec,
        name=st.text(max_size=5),
        dtype=st.sampled_from(list(DATA_TYPES.values())),
        dims=st.just(tuple(size for size, _ in dims)),
        axes=st.just(tuple(axis for _, axis in dims)),
        optional=st.booleans(),
        fill=st.floats(-9, 9),
    )
)
SIGNATURES = st.builds(
    Signature,
    inputs=st.lists(SPECS, max_size=3).map(tuple),
    outputs=st.lists(SPECS, max_size=3).map(tuple),
    axis_limits=st.dictionaries(st.text(max_size=3), st.integers(1, 999), max_size=2),
    lengths=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)


@given(SIGNATURES)
def test_a_signature_message_is_an_inverse(signature):
    """A signature made a message and back is equal to what it was."""
    assert SignatureMessage.of(signature).signature() == signature


def test_a_state_message_is_an_inverse():
    """A state made a message and back is equal to what it was."""
    state = State(
        input="h",
        output="h_next",
        dtype=DATA_TYPES["BF16"],
        dims=(-1, 4),
        initial_dims=(0, 4),
        initial_file="/models/m/initial_state/h",
    )
    assert StateMessage.of(state).state() == state
