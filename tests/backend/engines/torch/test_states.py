"""States of a TorchScript file, which names neither its types nor its outputs."""

import contextlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fakes.torch_vendor import FakeVendor  # noqa: E402
from ge_backend.device.base import GraphSource, open_device  # noqa: E402
from ge_backend.device.resident.state_layout import StateLayout  # noqa: E402
from ge_backend.device.resident.states import open_states  # noqa: E402
from ge_backend.engines.torch.accelerator import AcceleratorGraph  # noqa: E402
from ge_backend.engines.torch.streams import Streams  # noqa: E402
from ge_backend.model.config.sequence_batching import State  # noqa: E402
from ge_backend.tensors import DATA_TYPES  # noqa: E402


class Accumulator(torch.nn.Module):
    """Gives the sum twice: for the client, and as the next state."""

    def forward(self, x, h):
        total = x + h
        return total, total.clone()


@pytest.mark.parametrize(("given", "state"), [("x", "h"), ("INPUT__0", "STATE__1")])
def test_they_are_given_by_their_arguments_names_or_places(tmp_path, given, state):
    """As Triton's PyTorch backend does; outputs have places only."""
    path = tmp_path / "model.pt"
    torch.jit.script(Accumulator()).save(str(path))
    kept = State(
        input=state, output="OUTPUT__1", dtype=DATA_TYPES["FP32"], dims=(2,), initial_dims=(2,)
    )
    layout = StateLayout(states=(kept,), count=2, batched=True, hidden=frozenset({"OUTPUT__1"}))
    with contextlib.closing(open_device("cpu")) as device:
        graph = device.load(GraphSource.of(path))
        with contextlib.closing(graph), contextlib.closing(open_states(graph, layout)) as slots:
            for total, starting in ((1, [1]), (2, []), (3, []), (1, [1])):
                x = np.ones((1, 2), np.float32)
                results, _ = slots.run({given: x}, {}, [1], starting, rows=1, exclusive=False)
                assert {n: a.tolist() for n, a in results.items()} == {"OUTPUT__0": [[total] * 2]}


class Sum(torch.nn.Module):
    """Adds up in FP32 what is kept in another type."""

    def forward(self, x, h):
        total = x + h.to(torch.float32)
        return total, total.to(h.dtype)


@pytest.mark.parametrize("name", ["UINT16", "UINT32", "UINT64", "INT16", "BF16", "BOOL"])
def test_states_of_every_type_stay_on_an_accelerator(tmp_path, name):
    """Also in slots that are no neighbours: torch picks and puts rows of few types."""
    path = tmp_path / "model.pt"
    torch.jit.script(Sum()).save(str(path))
    kept = State(
        input="h", output="OUTPUT__1", dtype=DATA_TYPES[name], dims=(2,), initial_dims=(2,)
    )
    layout = StateLayout(states=(kept,), count=4, batched=True, hidden=frozenset({"OUTPUT__1"}))
    graph = AcceleratorGraph(GraphSource.of(path), Streams(FakeVendor()))
    with contextlib.closing(graph), contextlib.closing(open_states(graph, layout)) as slots:
        for starting, total in (([0, 2], 1), ([], 2)):
            x = np.ones((2, 2), np.float32)
            found, _ = slots.run({"x": x}, {}, [0, 2], starting, rows=2, exclusive=False)
            assert found["OUTPUT__0"].tolist() == [[total] * 2] * 2
