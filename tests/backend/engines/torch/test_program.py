"""Signatures of torch's model files."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from ge_backend.engines.torch.program import load_program  # noqa: E402
from ge_backend.errors import ModelError  # noqa: E402

BATCH = torch.export.Dim("batch", min=1, max=64)
LENGTH = torch.export.Dim("length", min=2)
LATER = """
import sys
from ge_backend.engines.torch.program import load_a_program
load_a_program()
known = len(sys.modules)
import torch
torch.export.load(sys.argv[1]).module()
print(len(sys.modules) - known)
"""


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, ids, mask):
        return self.function(ids, mask)


class Options(torch.nn.Module):
    """Takes a constant and a keyword beside its tensor."""

    def forward(self, x, factor: int, *, bias):
        return {"scaled": x * factor + bias, "rows": x.shape[0]}


@pytest.fixture
def load(tmp_path):
    def load(function, names=None, length=LENGTH):
        path = tmp_path / "model.pt2"
        ids = torch.zeros(2, 5, dtype=torch.int64)
        program = torch.export.export(
            Function(function),
            (ids, ids.clone()),
            dynamic_shapes=({0: BATCH, 1: length}, {0: BATCH, 1: length}),
        )
        shape = program.graph_signature.user_inputs[0]
        value = next(n for n in program.graph.nodes if n.name == shape).meta["val"]
        symbols = dict(zip(("batch", "length"), map(str, value.shape), strict=True))
        extra = {"ge_names.json": json.dumps(names(symbols))} if names else {}
        torch.export.save(program, str(path), extra_files=extra)
        return load_program(str(path)), symbols

    return load


def test_symbols_are_axes(load):
    """Equal symbols are one axis, in inputs and outputs."""
    program, symbols = load(lambda ids, mask: ids * mask)
    batch, length = symbols["batch"], symbols["length"]
    specs = [*program.signature.inputs, *program.signature.outputs]
    assert [spec.name for spec in specs] == ["ids", "mask", "output"]
    assert {spec.axes for spec in specs} == {(batch, length)}
    assert {spec.dims for spec in specs} == {(-1, -1)}


def test_upper_bounds_are_limits(load):
    """A bound of the export is a limit of the axis; an axis without one has none."""
    program, symbols = load(lambda ids, mask: ids * mask)
    assert program.signature.axis_limits == {symbols["batch"]: 64}


@pytest.mark.parametrize(("least", "told"), [(None, {}), (2, {}), (4, {"length": 4})])
def test_lower_bounds_that_are_checked_are_told(load, least, told):
    """torch.export holds nobody to one of 2 or less, which it writes of its own."""
    length = LENGTH if least is None else torch.export.Dim("length", min=least)
    program, symbols = load(lambda ids, mask: ids * mask, length=length)
    assert program.signature.axis_least == {symbols[name]: size for name, size in told.items()}


def test_names_from_the_extra_file(load):
    """ge_names.json names inputs, outputs, axes, and with them the limits."""
    program, _ = load(
        lambda ids, mask: (ids * mask, ids.sum(1)),
        lambda symbols: {
            "inputs": ["input_ids", "attention_mask"],
            "outputs": ["tokens", "total"],
            "axes": {symbols["batch"]: "batch", symbols["length"]: "sequence"},
        },
    )
    signature = program.signature
    assert [spec.name for spec in signature.inputs] == ["input_ids", "attention_mask"]
    assert signature.output("tokens").describe() == "INT64 [batch, sequence]"
    assert signature.output("total").describe() == "INT64 [batch]"
    assert signature.axis_limits == {"batch": 64}
    ids = torch.ones(3, 4, dtype=torch.int64)
    result = program.call({"attention_mask": ids, "input_ids": ids * 2})
    assert result["total"].tolist() == [8, 8, 8]


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_too_few_names_are_refused(load, what):
    """A wrong number of names is a ModelError that lists the program's own."""
    with pytest.raises(ModelError, match=rf"names 3 {what}, the program has"):
        load(lambda ids, mask: ids * mask, lambda symbols: {what: ["a", "b", "c"]})


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda ids, mask: ids + mask, ["output"]),
        (lambda ids, mask: [ids + mask], ["output"]),
        (lambda ids, mask: (ids + mask, mask + 1), ["output_0", "output_1"]),
        (lambda ids, mask: {"b": ids + mask, "a": mask + 1}, ["b", "a"]),
        (lambda ids, mask: {"b": (ids + mask, mask + 1)}, ["output_0", "output_1"]),
    ],
    ids=["tensor", "list of one", "tuple", "dictionary", "nested"],
)
def test_names_of_outputs(load, function, names):
    """Keys of a dictionary are names; one tensor is `output`; others are numbered."""
    program, _ = load(function)
    assert [spec.name for spec in program.signature.outputs] == names
    ids = torch.ones(2, 3, dtype=torch.int64)
    assert list(program.call({"ids": ids, "mask": ids})) == names


def test_dimensions_that_are_computed(load):
    """A dimension that is a formula of others is an axis of that formula, which no input tells."""
    program, symbols = load(lambda ids, mask: torch.cat([ids, mask], 1))
    assert program.signature.outputs[0].axes == (symbols["batch"], f"2*{symbols['length']}")


def test_constants_and_keywords(tmp_path):
    """Constant arguments are those of the export; outputs that are not tensors are left out."""
    path = str(tmp_path / "model.pt2")
    example = torch.ones(3, 4)
    program = torch.export.export(
        Options(),
        (example, 3),
        {"bias": torch.ones(1)},
        dynamic_shapes={"x": {0: BATCH}, "factor": None, "bias": None},
    )
    torch.export.save(program, path)
    loaded = load_program(path)
    assert [spec.name for spec in loaded.signature.inputs] == ["x", "bias"]
    result = loaded.call({"bias": torch.zeros(1), "x": example})
    assert list(result) == ["scaled"]
    assert (result["scaled"] == 3).all()


def test_types_that_triton_lacks_are_refused(load):
    """A complex output is a ModelError that names it."""
    with pytest.raises(ModelError, match=r"'output' is torch\.complex64"):
        load(lambda ids, mask: (ids + mask).to(torch.complex64))


@pytest.mark.parametrize(
    ("function", "writes"), [(lambda a, b: a + b, False), (lambda a, b: a.add_(b) * 1, True)]
)
def test_in_place_operations_are_seen(load, function, writes):
    """A program with an in-place operation says so."""
    assert load(function)[0].writes_in_place is writes


class Constants(torch.nn.Module):
    """Makes tensors of its own, for which the exporter notes the device."""

    def forward(self, x):
        return x * torch.arange(4) + torch.zeros(4).to("cpu")


@pytest.mark.parametrize("kind", [".pt2", ".pt"])
def test_a_program_is_loaded_onto_a_device(tmp_path, kind):
    """Weights and the tensors that the program makes itself are where it was loaded to."""
    path = str(tmp_path / f"model{kind}")
    if kind == ".pt2":
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), Constants())
        torch.export.save(torch.export.export(module, (torch.ones(2, 4),)), path)
    else:  # TorchScript keeps the device in its code
        torch.jit.save(torch.jit.script(torch.nn.Linear(4, 4)), path)
    program = load_program(path, "meta")
    assert {weight.device.type for weight in program.module.parameters()} == {"meta"}
    results = program.call({"input": torch.ones(2, 4, device="meta")})
    assert {result.device.type for result in results.values()} == {"meta"}


class Rotary(torch.nn.Module):
    """One layer of attention with rotary positions, whose frequencies are a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(100, 32)
        self.project = torch.nn.Linear(32, 64)
        self.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0, 32, 2) / 32))

    def forward(self, ids):
        found = self.embedding(ids)
        angles = torch.arange(ids.shape[1], dtype=torch.float32)[:, None] * self.inv_freq.float()
        queries, keys = self.project(found).chunk(2, -1)
        queries = turned(queries, angles).to(found.dtype) * 8
        keys = turned(keys, angles).to(found.dtype) * 8
        return torch.nn.functional.scaled_dot_product_attention(queries, keys, found)


def turned(vectors, angles):
    a, b = vectors.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


@pytest.fixture
def lowered(tmp_path):
    """Return a function that gives the program of a module, its weights in BF16."""

    def lowered(module, kind, *example, **more):
        path = str(tmp_path / f"model{kind}")
        if kind == ".pt2":
            torch.export.save(torch.export.export(module, example, **more), path)
        else:
            torch.jit.save(torch.jit.script(module), path)
        program = load_program(path)
        program.lower(torch.bfloat16)
        return program

    return lowered


@pytest.mark.parametrize("kind", [".pt2", ".pt"])
def test_a_lower_type_is_for_weights_and_not_for_tables(lowered, kind):
    """Rounded frequencies put places in the wrong order, the more so the longer the text."""
    module = Rotary().eval()
    example = torch.zeros(2, 6, dtype=torch.int64)
    program = lowered(module, kind, example, dynamic_shapes=({1: LENGTH},))
    assert {weight.dtype for weight in program.module.parameters()} == {torch.bfloat16}
    assert {table.dtype for table in program.module.buffers()} == {torch.float32}
    ids = torch.randint(0, 100, (2, 2000), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        want = module(ids)
        with torch.autocast("cpu", torch.bfloat16):
            (got,) = program.call({"ids": ids}).values()
    assert torch.nn.functional.cosine_similarity(got.float(), want, dim=-1).mean() > 0.99


class FrozenNorm(torch.nn.Module):
    """Batch norm that is not trained: its weights are buffers, as in vision libraries."""

    def __init__(self):
        super().__init__()
        for name in ("weight", "running_var"):
            self.register_buffer(name, torch.rand(4) + 1)
        for name in ("bias", "running_mean"):
            self.register_buffer(name, torch.rand(4))

    def forward(self, x):
        return torch.nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias
        )


@pytest.mark.parametrize("kind", [".pt2", ".pt"])
@pytest.mark.parametrize("norm", [torch.nn.BatchNorm1d(4), FrozenNorm()])
def test_batch_norm_has_one_type(lowered, kind, norm):
    """It refuses statistics of another one than its weights."""
    module = torch.nn.Sequential(torch.nn.Conv1d(4, 4, 1), norm).eval()
    x = torch.rand(2, 4, 5)
    program = lowered(module, kind, x)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        (got,) = program.call({"input": x}).values()
    assert torch.allclose(got.float(), module(x), atol=0.05)


def test_behind_a_first_program_little_is_left_to_import(tmp_path):
    """Of the more than a thousand modules that a first load brings."""
    torch.export.save(
        torch.export.export(torch.nn.Linear(2, 3), (torch.zeros(1, 2),)), tmp_path / "model.pt2"
    )
    done = subprocess.run(
        [sys.executable, "-c", LATER, str(tmp_path / "model.pt2")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) < 50
