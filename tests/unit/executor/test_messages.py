"""Signatures cross the process border as messages."""

from hypothesis import given
from hypothesis import strategies as st

from ge_backend.executor.messages import SignatureMessage
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec

SPECS = st.lists(st.tuples(st.integers(-1, 9), st.text(max_size=3)), max_size=4).flatmap(
    lambda dims: st.builds(
        TensorSpec,
        name=st.text(max_size=5),
        dtype=st.sampled_from(list(DATA_TYPES.values())),
        dims=st.just(tuple(size for size, _ in dims)),
        axes=st.just(tuple(axis for _, axis in dims)),
        optional=st.booleans(),
    )
)
SIGNATURES = st.builds(
    Signature,
    inputs=st.lists(SPECS, max_size=3).map(tuple),
    outputs=st.lists(SPECS, max_size=3).map(tuple),
    axis_limits=st.dictionaries(st.text(max_size=3), st.integers(1, 999), max_size=2),
)


@given(SIGNATURES)
def test_a_signature_message_is_an_inverse(signature):
    """A signature made a message and back is equal to what it was."""
    assert SignatureMessage.of(signature).signature() == signature
