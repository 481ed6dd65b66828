"""What is known of a request when it comes."""

import numpy as np
import pytest

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


@pytest.mark.parametrize(("shapes", "rows"), [([(3, 7), (3,)], 3), ([()], 1), ([], 1)])
def test_rows_are_those_of_the_first_input(pb_utils, shapes, rows):
    """Inputs of one request have as many; one without is a row by itself."""
    from ge_backend.host.arrival import Arrival

    inputs = [pb_utils.Tensor("x", np.zeros(shape)) for shape in shapes]
    assert Arrival.of(pb_utils.InferenceRequest(inputs), 0, 0).rows == rows
