"""Which programs can be captured."""

import re

import pytest

torch = pytest.importorskip("torch")

from ge_backend.engines.torch.capture_check import CaptureCheck  # noqa: E402

X = torch.tensor([[1.0, -2.0], [3.0, -4.0]])
NOWHERE = torch.empty(2, 2, device="meta")


def written(x):
    x[x > 0] = 0
    return x


def obstacles(call, x=X):
    with torch.no_grad(), CaptureCheck() as check:
        call(x)
    return check.obstacles


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: x[x > 0], "aten.index."),
        (lambda x: written(x.clone()), "aten.index_put_"),
        (lambda x: x.nonzero(), "aten.nonzero"),
        (lambda x: x * x.sum().item(), "aten._local_scalar_dense"),
        (lambda x: x if x.sum() > 0 else -x, "aten._local_scalar_dense"),
        (lambda x: torch.masked_select(x, x > 0), "aten.masked_select"),
        (lambda x: x.unique(), "aten._unique2"),
        (lambda x: x.to("meta"), "aten._to_copy"),
        (lambda x: torch.tensor(3.0).to("meta"), "aten._to_copy"),
        (lambda x: torch.empty_like(NOWHERE).copy_(x), "aten.copy_"),
    ],
)
def test_what_makes_the_host_wait_is_noted(call, named):
    """By the operator's name, and the program runs on."""
    found = obstacles(call)
    assert len(found) == 1
    assert re.match(named, found[0])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x[torch.tensor([1, 0])],
        lambda x: x.masked_fill(x > 0, 0.0),
        lambda x: torch.where(x > 0, x, torch.zeros(())),
        lambda x: (x @ x + 1).softmax(-1).to(torch.bfloat16),
        lambda x: x * torch.arange(2),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    ],
)
def test_what_stays_on_the_device_is_not(call):
    """Operators that only queue work."""
    assert obstacles(call) == []


def test_a_number_of_the_host_is_passed_by_value():
    """It need not be on the device."""
    assert obstacles(lambda x: x * torch.tensor(2.0), NOWHERE) == []


def test_what_comes_with_a_result_on_the_host_moves_nothing():
    """Fused attention on CUDA gives the state of its random numbers there (seen on an H100)."""
    with torch.library._scoped_library("ge_test", "DEF") as library:
        library.define("attention(Tensor x) -> (Tensor, Tensor, Tensor)")
        library.impl("attention", lambda x: (x * 2, torch.zeros(()), torch.zeros(2)), "Meta")
        assert obstacles(torch.ops.ge_test.attention, NOWHERE) == []


def test_torchscript_is_watched_too():
    """Its interpreter calls the same operators."""
    assert obstacles(torch.jit.script(torch.nn.Sequential(torch.nn.ReLU()))) == []
    assert len(obstacles(torch.jit.trace(lambda x: x[x > 0], X))) == 1
