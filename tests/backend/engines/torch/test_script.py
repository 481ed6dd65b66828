"""TorchScript files called by the names that config.pbtxt gives their tensors."""

import json
from dataclasses import replace
from typing import Dict, List, Optional, Tuple  # noqa: UP035 - TorchScript reads these

import pytest

torch = pytest.importorskip("torch")

from ge_backend.engines.torch.script import Script  # noqa: E402
from ge_backend.errors import ConfigError, GraphFailed  # noqa: E402
from ge_backend.model.config.declared import NOTHING_DECLARED, Declared  # noqa: E402
from ge_backend.tensors import DATA_TYPES, TensorSpec  # noqa: E402


class Pair(torch.nn.Module):
    def forward(self, a, b):
        return a - b, a * b


class Listed(torch.nn.Module):
    def forward(self, a, b) -> List[torch.Tensor]:  # noqa: UP006
        return [a - b, a * b]


class One(torch.nn.Module):
    def forward(self, a, b):
        return a - b


class Tail(torch.nn.Module):
    """Its mask may be left out, and its factor is never a tensor."""

    def forward(self, a, mask: Optional[torch.Tensor] = None, factor: int = 2):  # noqa: UP045
        return a * factor if mask is None else a * mask * factor


class Perhaps(torch.nn.Module):
    """Its first argument has no value of its own, and may be None all the same."""

    def forward(self, mask: Optional[torch.Tensor], a):  # noqa: UP045
        return a if mask is None else a * mask


class Counted(torch.nn.Module):
    def forward(self, a) -> Tuple[torch.Tensor, int, float]:  # noqa: UP006
        return a, a.shape[0], 0.5


class Keyed(torch.nn.Module):
    def forward(self, tensors: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:  # noqa: UP006
        return {"less": tensors["x"] - tensors["y"], "more": tensors["x"] + tensors["y"]}


class Texts(torch.nn.Module):
    def forward(self, texts: List[str]) -> List[str]:  # noqa: UP006
        return texts


class Number(torch.nn.Module):
    def forward(self, a, factor: int) -> Tuple[torch.Tensor]:  # noqa: UP006
        return (a * factor,)


def specs(text, dtype):
    return tuple(
        TensorSpec(name=name, dtype=DATA_TYPES[dtype], dims=(-1,), axes=("",))
        for name in text.split()
    )


def declared(inputs, outputs, dtype="FP32"):
    return Declared(inputs=specs(inputs, dtype), outputs=specs(outputs, dtype))


@pytest.fixture
def load(tmp_path):
    def load(module, told=NOTHING_DECLARED, signature=None):
        path = str(tmp_path / "model.pt")
        extra = {"ge_signature.json": json.dumps(signature)} if signature else {}
        torch.jit.save(torch.jit.script(module), path, _extra_files=extra)
        return Script(path, "cpu", told)

    return load


def run(script, **values):
    found = script({name: torch.tensor([value]) for name, value in values.items()})
    return {name: result.item() for name, result in found.items()}


@pytest.mark.parametrize("module", [Pair, Listed])
@pytest.mark.parametrize(
    ("inputs", "outputs", "results"),
    [
        ("a b", "OUTPUT__0 OUTPUT__1", [3, 10]),
        ("b a", "OUTPUT__1", [10]),
        ("X__0 X__1", "Y__1 Y__0", [10, 3]),
        ("left right", "less times", [3, 10]),
    ],
)
def test_names_decide_which_tensor_is_which(load, module, inputs, outputs, results):
    """Five as the first argument and two as the second, however they are called."""
    script = load(module(), declared(inputs, outputs))
    first, second = inputs.split() if inputs != "b a" else ("a", "b")
    given = {second: 2, first: 5}
    assert run(script, **given) == dict(zip(outputs.split(), results, strict=True))
    assert [spec.name for spec in script.signature.inputs] == inputs.split()


def test_arguments_with_a_value_of_their_own_may_be_left_out(load):
    """An optional tensor is taken where it is declared, and its default where not."""
    assert run(load(Tail(), declared("a", "OUTPUT__0")), a=3) == {"OUTPUT__0": 6}
    assert run(load(Tail(), declared("a mask", "OUTPUT__0")), a=3, mask=0) == {"OUTPUT__0": 0}


@pytest.mark.parametrize("inputs", ["a mask", "X__0 X__1"])
def test_an_optional_tensor_need_not_come_with_each_run(load, inputs):
    """It is optional in the signature, too, so that a request without it is no mistake."""
    script = load(Tail(), declared(inputs, "OUTPUT__0"))
    first, second = inputs.split()
    assert [spec.optional for spec in script.signature.inputs] == [False, True]
    assert run(script, **{first: 3}) == {"OUTPUT__0": 6}
    assert run(script, **{first: 3, second: 5}) == {"OUTPUT__0": 30}
    assert not any(spec.optional for spec in load(Pair(), declared("a b", "Y__0")).signature.inputs)


def test_a_tensor_that_may_be_none_need_not_come_either(load):
    """Where it has no value of its own it is None."""
    script = load(Perhaps(), declared("a mask", "OUTPUT__0"))
    assert [spec.optional for spec in script.signature.inputs] == [False, True]
    assert run(script, a=3) == {"OUTPUT__0": 3}
    assert run(script, a=3, mask=5) == {"OUTPUT__0": 15}
    assert run(load(Perhaps(), declared("a", "OUTPUT__0")), a=3) == {"OUTPUT__0": 3}


def test_a_state_comes_with_each_run_though_forward_could_do_without(load):
    """Sequences keep one for each step; clients send none of it."""
    told = replace(declared("X__0", "Y__0"), states=specs("mask__1", "FP32"))
    assert not any(spec.optional for spec in load(Tail(), told).signature.inputs)


def test_one_dictionary_takes_all_tensors_by_their_names(load):
    """And a dictionary gives outputs by its keys, those that are declared."""
    script = load(Keyed(), declared("y x", "more"))
    assert run(script, x=5, y=2) == {"more": 7}
    with pytest.raises(ConfigError, match="less, more, without the declared output 'most'"):
        run(load(Keyed(), declared("x y", "most")), x=5, y=2)


@pytest.mark.parametrize(
    ("module", "inputs", "outputs", "said"),
    [
        (Pair, "a", "Y__0", "configuration expects 1 inputs, model provides 2: a, b"),
        (Pair, "a b c", "Y__0", "configuration expects 3 inputs, model provides 2"),
        (Tail, "mask", "Y__0", "argument 'a', number 0 from 0 on, is none of the inputs mask"),
        (Number, "a factor", "Y__0", "an input of type 'int' was detected in the model, 'factor'"),
        (Pair, "a b", "Y__2", "output Y__2 .* refers to an output index which doesn't exist. "),
        (One, "a b", "Y__0 Y__1", "output Y__1 .* This model has 1 outputs"),
    ],
)
def test_what_does_not_fit_forward_is_refused_at_load(load, module, inputs, outputs, said):
    """In the words of Triton's PyTorch backend, which users know."""
    with pytest.raises(ConfigError, match=said):
        load(module(), declared(inputs, outputs))


def test_numbers_that_forward_returns_are_tensors_without_dimensions(load):
    """Whether or not anybody declares them."""
    results = {"OUTPUT__0": 3, "OUTPUT__1": 1, "OUTPUT__2": 0.5}
    for told in (declared("a", " ".join(results)), NOTHING_DECLARED):
        script = load(Counted(), told)
        assert run(script, a=3) == results
        assert script({"a": torch.ones(4)})["OUTPUT__1"].shape == ()


def test_a_list_tells_its_length_when_it_comes(load):
    """So an output that it does not have is refused then."""
    script = load(Listed(), declared("a b", "Y__2"))
    with pytest.raises(ConfigError, match="This model has 2 outputs"):
        run(script, a=1, b=1)


def test_texts_are_refused_at_load_with_the_reason(load):
    """Torch has no tensors of texts; what to do instead is said."""
    with pytest.raises(ConfigError, match="TYPE_STRING for input 'texts': torch has no tensors"):
        load(Texts(), declared("texts", "OUTPUT__0", "BYTES"))


def test_a_stated_signature_counts_and_not_the_configuration(load):
    """ge_signature.json names tensors in the order of forward."""
    stated = {
        "inputs": [{"name": n, "dtype": "FP32", "dims": ["n"]} for n in ("l", "r")],
        "outputs": [{"name": n, "dtype": "FP32", "dims": ["n"]} for n in ("less", "times")],
    }
    script = load(Pair(), declared("b a", "Y__1"), stated)
    assert run(script, r=2, l=5) == {"less": 3, "times": 10}
    assert not script.declared
    with pytest.raises(GraphFailed, match="returned 1 tensors; its outputs are"):
        run(load(One(), signature=stated), r=2, l=5)


def test_without_a_word_tensors_are_named_by_argument_or_place(load):
    """As `benchmarks` and tests load files, without a configuration."""
    script = load(Pair())
    assert run(script, b=2, X__0=5) == {"OUTPUT__0": 3, "OUTPUT__1": 10}
    with pytest.raises(GraphFailed, match="takes the inputs a, b, or INPUT__0"):
        run(script, a=5, c=2)
