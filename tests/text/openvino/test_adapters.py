"""What the graph is given for adapters: matrices side by side, and whose tokens they are for."""

import math

import pytest
import torch

from ge_text.models.adapter import Product
from ge_text.openvino.adapters import AdapterInputs
from ge_text.torch.lora import Change, StepAdapters

PRODUCTS = (
    Product(inputs=3, layers={"query": 2, "key": 2}),
    Product(inputs=4, layers={"out": 3}),
)


def change(rank, inputs, outputs, number=1.0):
    return Change(torch.full((rank, inputs), number), torch.full((outputs, rank), number))


PIRATE = [change(2, 3, 4), change(1, 4, 3)]
POET = [None, change(1, 4, 3, 5.0)]


def given(inputs, *parts, tokens=4):
    """Return a step's tensors by name, as lists."""
    step = StepAdapters(tuple(parts))
    return {name: tensor.data.tolist() for name, tensor in inputs.of(step, tokens)}


def of(*tokens):
    return torch.tensor(tokens)


def test_matrices_stand_side_by_side_as_wide_in_each_product():
    """What an adapter does not change, and what is narrower elsewhere, is filled with 0."""
    found = given(AdapterInputs(PRODUCTS, torch.float32), (of(0, 2), PIRATE), (of(3), POET))
    columns = len(found["whose"][0])
    assert columns == 2 + 1
    for number, product in enumerate(PRODUCTS):
        down, up = found[f"down.{number}"], found[f"up.{number}"]
        assert (len(down), len(down[0])) == (columns, product.inputs)
        assert (len(up), len(up[0])) == (sum(product.layers.values()), columns)
    whose = torch.tensor(found["whose"])
    own = [whose[token].nonzero().flatten().tolist() for token in range(4)]
    assert own[1] == []
    assert own[0] == own[2]
    down = torch.tensor(found["down.1"])
    assert down[own[0]].tolist() == [[1.0] * 4, [0.0] * 4]
    assert down[own[3]].tolist() == [[5.0] * 4]
    assert torch.tensor(found["down.0"])[own[3]].tolist() == [[0.0] * 3]


def test_the_same_adapters_are_given_once():
    """In whatever order they come: a step later only their tokens are others."""
    inputs = AdapterInputs(PRODUCTS, torch.float32)
    first = given(inputs, (of(0), PIRATE), (of(1), POET), tokens=2)
    assert len(first) == 1 + 2 * len(PRODUCTS)
    again = given(inputs, (of(1), POET), (of(0), PIRATE), tokens=2)
    assert again == {"whose": first["whose"]}
    assert given(inputs, (None, PIRATE)).keys() == first.keys()


def test_after_a_step_that_failed_all_is_given_again(monkeypatch):
    """There was no memory to put them side by side, and the graph still has those of before."""
    inputs = AdapterInputs(PRODUCTS, torch.float32)
    given(inputs, (of(0), PIRATE), tokens=1)
    with monkeypatch.context() as scarce:
        scarce.setattr(torch, "cat", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            given(inputs, (of(0), POET), tokens=1)
    fresh = given(AdapterInputs(PRODUCTS, torch.float32), (of(0), POET), tokens=1)
    assert given(inputs, (of(0), POET), tokens=1) == fresh


def test_what_is_no_number_is_left_to_its_own_tokens():
    """The sums of all others go over its columns, too."""
    broken = [change(2, 3, 4, math.nan), change(1, 4, 3)]
    found = given(AdapterInputs(PRODUCTS, torch.float32), (of(1), broken), tokens=2)
    whose = torch.tensor(found.pop("whose"))
    assert whose[0].tolist() == [0.0, 0.0]
    assert whose[1].isnan().all()
    assert all(not torch.tensor(matrix).any() for matrix in found.values())
