"""torch on the CPU: what the contract does not say of every engine."""

import json
import threading
import time
from typing import Optional

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ge_backend.device.base import GraphSource  # noqa: E402
from ge_backend.device.machine.threads import SOONEST, TRIAL, Cores  # noqa: E402
from ge_backend.engines.torch import slow_half  # noqa: E402
from ge_backend.engines.torch.cpu_graph import TorchGraph  # noqa: E402
from ge_backend.errors import GraphFailed, OutOfMemory  # noqa: E402
from ge_backend.model.config.declared import Declared  # noqa: E402
from ge_backend.tensors import DATA_TYPES, TensorSpec, bf16_to_float32  # noqa: E402

ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
BATCH = torch.export.Dim("batch", min=1, max=64)


class Function(torch.nn.Module):
    """A module without weights."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Mixed(torch.nn.Module):
    """Two layers with a float32 step between, as exporters write for layer norms."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.second(self.first(x).to(torch.float32) * torch.ones(8))


@pytest.fixture
def load(tmp_path):
    def load(module, *example, batched=True, cores=2, **source):
        example = example or (torch.from_numpy(ROWS),)
        shapes = tuple({0: BATCH} for _ in example) if batched else None
        path = tmp_path / "model.pt2"
        module = module if isinstance(module, torch.nn.Module) else Function(module)
        torch.export.save(torch.export.export(module, example, dynamic_shapes=shapes), str(path))
        return TorchGraph(GraphSource.of(path, **source), Cores(cores))

    return load


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("origin", 1e-6), ("bf16", 2e-2), ("fp16", 2e-3)]
)
def test_precision_keeps_declared_types(load, precision, tolerance):
    """In every precision inputs and outputs stay float32, and results stay close."""
    module = Mixed()
    with torch.inference_mode():
        expected = module(torch.from_numpy(ROWS)).numpy()
    graph = load(module, precision=precision)
    result = graph.run({"x": ROWS}, {}, exclusive=False)["output"]
    assert result.dtype == np.float32
    assert np.abs(result - expected).max() < tolerance


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_halves_the_weights(load, precision):
    """Weights are converted once at load, not at every run."""
    graph = load(Mixed(), precision=precision)
    assert {weight.dtype for weight in graph._program.module.parameters()} == {
        {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    }


@pytest.mark.parametrize("precision", ["origin", "bf16"])
@pytest.mark.parametrize("has_bf16", [True, False])
def test_bf16_on_a_processor_without_it_is_told(load, monkeypatch, caplog, precision, has_bf16):
    """It is right there, and slow."""
    monkeypatch.setattr(slow_half, "_has_bf16", lambda: has_bf16)
    load(lambda x: x + 1, precision=precision)
    assert ("BF16 slowly" in caplog.text) == (precision == "bf16" and not has_bf16)


def test_low_precision_leaves_integers_alone(load):
    """Only floating-point inputs are converted."""
    graph = load(lambda x: x + 1, torch.tensor([1, 2]), precision="bf16")
    assert graph.run({"x": np.array([2**40 + 1])}, {}, exclusive=False)["output"].tolist() == [
        2**40 + 2
    ]


@pytest.mark.parametrize(("precision", "bucketed"), [("origin", False), ("bf16", True)])
def test_lower_precisions_prefer_buckets(load, precision, bucketed):
    """Each new shape costs time and memory there; in the file's own precision it does not."""
    graph = load(lambda x: x + 1, precision=precision)
    assert graph.shape_policy.bucketed is bucketed


def test_bf16_outputs_are_bit_patterns(load):
    """A BF16 output comes as uint16, in its place as well."""
    graph = load(lambda x: x.to(torch.bfloat16))
    place = np.zeros((3, 4), np.uint16)
    result = graph.run({"x": ROWS}, {"output": place}, exclusive=False)["output"]
    assert result is place
    assert np.abs(bf16_to_float32(place) - ROWS).max() < 4e-3


def test_a_program_that_writes_in_place_does_not_write_to_the_caller(load):
    """Inputs are copied for programs with in-place operations."""
    graph = load(lambda x: x.add_(1).clone())
    given = ROWS.copy()
    result = graph.run({"x": given}, {}, exclusive=False)["output"]
    assert np.array_equal(given, ROWS)
    assert np.allclose(result, ROWS + 1)


def test_weights_are_not_given_away(load):
    """An output that is a weight itself is a copy: writing to it does not change the model."""
    module = Function(lambda x: x)
    module.register_buffer("weight", torch.ones(4))
    module.function = lambda x: (x, module.weight)
    graph = load(module)
    graph.run({"x": ROWS}, {}, exclusive=False)["output_1"][:] = 7
    assert graph.run({"x": ROWS}, {}, exclusive=False)["output_1"].tolist() == [1, 1, 1, 1]


def test_results_that_are_strided(load):
    """A transposed result is delivered by its elements."""
    graph = load(lambda x: x.T)
    assert np.array_equal(graph.run({"x": ROWS}, {}, exclusive=False)["output"], ROWS.T)


def test_a_size_outside_the_export_is_refused(load):
    """Sizes that the program was not exported for are a GraphFailed that tells the guard."""
    graph = load(lambda x: x + 1)
    for shape in ((3, 5), (65, 4)):
        with pytest.raises(GraphFailed, match=r"failed to run: .+") as caught:
            graph.run({"x": np.zeros(shape, np.float32)}, {}, exclusive=False)
        assert "\n" not in str(caught.value)


def test_lack_of_memory(load):
    """A tensor larger than memory is OutOfMemory."""
    graph = load(lambda x: x.expand(2**22, 2**22).contiguous(), torch.zeros(1, 1), batched=False)
    with pytest.raises(OutOfMemory, match="memory"):
        graph.run({"x": np.zeros((1, 1), np.float32)}, {}, exclusive=False)


@pytest.mark.parametrize(
    ("threads", "cores", "exclusive", "used"),
    [
        (0, 2, True, {1, 2}),
        (0, 2, False, {1}),
        (0, 1, True, {1}),
        (1, 2, True, {1}),
        (3, 2, False, {3}),
    ],
)
def test_threads_of_a_run(load, threads, cores, exclusive, used):
    """Runs that are alone try all cores, others take one; a fixed number always holds."""
    graph = load(lambda x: x + 1, threads=threads, cores=cores)
    seen = []
    real = graph._program.call

    def call(tensors):
        seen.append(torch.get_num_threads())
        return real(tensors)

    object.__setattr__(graph._program, "call", call)

    def work():
        for _ in range(SOONEST + TRIAL):
            graph.run({"x": ROWS}, {}, exclusive=exclusive)
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert set(seen) == used


class Pair(torch.nn.Module):
    def forward(self, a, b):
        return a - b, a * b


class Masked(torch.nn.Module):
    def forward(self, a, b: Optional[torch.Tensor] = None):  # noqa: UP045 - TorchScript reads it
        return a if b is None else a * b


@pytest.fixture
def script(tmp_path):
    def script(module, signature=None, **source):
        path = tmp_path / "model.pt"
        extra = {"ge_signature.json": json.dumps(signature)} if signature else {}
        torch.jit.save(torch.jit.script(module), str(path), _extra_files=extra)
        return TorchGraph(GraphSource.of(path, **source), Cores(1))

    return script


A, B = np.array([5, 7], np.float32), np.array([2, 3], np.float32)


@pytest.mark.parametrize("names", [("a", "b"), ("INPUT__0", "INPUT__1"), ("left__0", "right__1")])
def test_script_inputs_by_argument_or_position(script, names):
    """Inputs of a TorchScript file are called by argument or by position, in any order."""
    graph = script(Pair())
    assert (graph.signature.inputs, graph.signature.outputs) == ((), ())
    result = graph.run({names[1]: B, names[0]: A}, {}, exclusive=False)
    assert {name: value.tolist() for name, value in result.items()} == {
        "OUTPUT__0": [3, 4],
        "OUTPUT__1": [10, 21],
    }


@pytest.mark.parametrize(
    "names", [("a", "c"), ("INPUT__0", "INPUT__2"), ("a",), ("a", "b", "INPUT__1")]
)
def test_script_inputs_that_do_not_fit(script, names):
    """Names that are neither arguments nor positions are refused with those that are."""
    with pytest.raises(GraphFailed):
        script(Pair()).run(dict.fromkeys(names, A), {}, exclusive=False)


def test_script_with_a_signature_of_its_own(script):
    """The extra file gives a TorchScript file names, types and axes."""
    given = {
        "inputs": [{"name": n, "dtype": "FP32", "dims": ["n"]} for n in ("left", "right")],
        "outputs": [{"name": n, "dtype": "FP64", "dims": ["n"]} for n in ("less", "times")],
    }
    graph = script(Pair(), given)
    assert graph.signature.output("times").describe() == "FP64 [n]"
    result = graph.run({"left": A, "right": B}, {}, exclusive=False)
    assert {name: value.dtype for name, value in result.items()} == {"less": "f8", "times": "f8"}
    assert result["less"].tolist() == [3, 4]


def test_script_runs_without_an_optional_input(script):
    """One that `forward` takes as None; the others have to come."""
    specs = [
        TensorSpec(name=name, dtype=DATA_TYPES["FP32"], dims=(-1,), axes=("",))
        for name in ("a", "b", "y")
    ]
    graph = script(Masked(), declared=Declared(inputs=tuple(specs[:2]), outputs=tuple(specs[2:])))
    assert graph.run({"a": A, "b": B}, {}, exclusive=False)["y"].tolist() == [10, 21]
    assert graph.run({"a": A}, {}, exclusive=False)["y"].tolist() == [5, 7]
    with pytest.raises(GraphFailed, match="takes the inputs a; got none"):
        graph.run({}, {}, exclusive=False)


def test_script_in_low_precision_gives_float32(script):
    """Without a declared type, what was converted comes back as float32."""
    result = script(Pair(), precision="bf16").run({"a": A, "b": B}, {}, exclusive=False)
    assert result["OUTPUT__0"].dtype == np.float32
    assert result["OUTPUT__0"].tolist() == [3, 4]


def test_script_errors_tell_the_cause(script):
    """The one line of a TorchScript error is its cause, not its stack."""
    with pytest.raises(GraphFailed, match="size of tensor a"):
        script(Pair()).run({"a": A, "b": np.ones(3, np.float32)}, {}, exclusive=False)


def test_scratch_is_measured_per_prepared_shape(load):
    """Two intermediates of known size; smaller runs get the bound of the next larger one."""

    def program(x):
        first = torch.exp(x)
        second = torch.sin(first)
        return second + first

    graph = load(program, torch.ones(64, 1024))
    assert graph.workspace_bytes({"x": (8, 1024)}) == 0
    for rows in (64, 8):
        graph.prepare({"x": np.ones((rows, 1024), np.float32)})
    row = 1024 * 4
    assert 3 * 64 * row <= graph.workspace_bytes({"x": (64, 1024)}) <= 3 * 64 * row + 65536
    assert 3 * 8 * row <= graph.workspace_bytes({"x": (8, 1024)}) <= 3 * 8 * row + 65536
    assert graph.workspace_bytes({"x": (1, 1024)}) == graph.workspace_bytes({"x": (8, 1024)})
