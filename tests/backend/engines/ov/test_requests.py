"""The requests that a compiled model is run by."""

import threading
import weakref

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
from openvino import opset13  # noqa: E402

from ge_backend.engines.ov.requests import BorrowingRequest, Requests  # noqa: E402


def tensor(array):
    return openvino.Tensor(array, shared_memory=True)


@pytest.fixture(params=[-1, 3], ids=["any-size", "one-size"])
def compiled(request):
    """A compiled model: y = x + 1, both FP32 of one dimension."""
    x = opset13.parameter(openvino.PartialShape([request.param]), np.float32)
    model = openvino.Model([opset13.add(x, np.float32(1))], [x])
    return openvino.Core().compile_model(model, "CPU", {"NUM_STREAMS": 2})


class Counted:
    """A compiled model that counts the requests it makes."""

    made = 0

    def create_infer_request(self):
        self.made += 1
        return self.made


def test_requests_are_made_before_any_run():
    """Making one beside runs is not safe; later runs use these again."""
    compiled = Counted()
    requests = Requests(compiled, 2, lambda request: request)
    for _ in range(3):
        with requests.taken() as one, requests.taken() as other:
            assert {one, other} == {1, 2}
    assert compiled.made == 2


def test_more_runs_wait_for_their_turn():
    """The next begins when one of those before it is done, with the request of that one."""
    requests = Requests(Counted(), 1, lambda request: request)
    took = []

    def run():
        with requests.taken() as request:
            took.append(request)

    with requests.taken() as first:
        second = threading.Thread(target=run)
        second.start()
        second.join(0.1)
        assert second.is_alive()
        assert took == []
    second.join()
    assert took == [first]


def test_a_request_whose_run_failed_is_lent_again(compiled):
    """Nor is a place that is too small for one result remembered for the next."""
    requests = Requests(compiled, 1, BorrowingRequest)
    x = np.arange(3, dtype=np.float32)
    with pytest.raises(RuntimeError), requests.taken() as request:
        request.run([tensor(x)], {0: tensor(np.empty(2, np.float32))})
    place = np.empty(3, np.float32)
    with requests.taken() as request:
        request.run([tensor(x)], {0: tensor(place)})
    assert place.tolist() == [1, 2, 3]


def test_a_request_keeps_no_memory_of_the_callers(compiled):
    """Memory that is shared with other processes can be closed after a run, and freed."""
    request = BorrowingRequest(compiled.create_infer_request())
    x, place = np.ones(3, np.float32), np.empty(3, np.float32)
    request.run([tensor(x)], {0: tensor(place)})
    kept = weakref.ref(x), weakref.ref(place)
    del x, place
    assert [one() for one in kept] == [None, None]
