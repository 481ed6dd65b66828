"""What is known of a request when it comes."""

import time

import numpy as np
import pytest

from ge_backend.executor.protocol.messages import Run
from ge_backend.executor.protocol.wire import decode, encode

MS = 1_000_000


@pytest.mark.parametrize(
    ("own_us", "default_us", "deadline_ns"),
    [(0, 0, 0), (5000, 0, 105 * MS), (0, 7000, 107 * MS), (5000, 7000, 105 * MS), (9000, 7000, 107 * MS)],
)  # fmt: skip
def test_the_shorter_timeout_counts(pb_utils, own_us, default_us, deadline_ns):
    """The client's, in microseconds, may be shorter than the model's, not longer."""
    from ge_backend.host.arrival import Arrival

    request = pb_utils.InferenceRequest(timeout=own_us)
    arrival = Arrival.of(request, 100 * MS, default_us)
    assert (arrival.request, arrival.came_ns, arrival.deadline_ns) == (
        request,
        100 * MS,
        deadline_ns,
    )


def test_a_timeout_is_said_in_its_unit(pb_utils):
    """Clients that mean milliseconds see what they have sent."""
    from ge_backend.host.arrival import Arrival

    arrival = Arrival.of(pb_utils.InferenceRequest(timeout=30), 100 * MS, 0)
    assert arrival.time_said == "its timeout is 30 microseconds"


@pytest.mark.parametrize("timeout_us", [10**14, 5 * 10**15, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("default_us", [0, 2**62])
def test_whatever_timeout_a_client_says_a_message_can_hold(pb_utils, timeout_us, default_us):
    """It is a year at most; what an executor cannot read would fail the whole batch."""
    from ge_backend.host.arrival import LONGEST_TIMEOUT_US, Arrival

    now_ns = time.monotonic_ns()
    deadline_ns = Arrival.of(
        pb_utils.InferenceRequest(timeout=timeout_us), now_ns, default_us
    ).deadline_ns
    assert deadline_ns == now_ns + 1000 * LONGEST_TIMEOUT_US
    run = Run(id=1, graph=1, arena=0, inputs=(), outputs=(), deadline_ns=deadline_ns)
    assert decode(encode(run)) == run


@pytest.mark.parametrize(("shapes", "rows"), [([(3, 7), (3,)], 3), ([()], 1), ([], 1)])
def test_rows_are_those_of_the_first_input(pb_utils, shapes, rows):
    """Inputs of one request have as many; one without is a row by itself."""
    from ge_backend.host.arrival import Arrival

    inputs = [pb_utils.Tensor("x", np.zeros(shape)) for shape in shapes]
    assert Arrival.of(pb_utils.InferenceRequest(inputs), 0, 0).rows == rows
