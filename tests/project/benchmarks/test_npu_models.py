"""The models that a real `atc` gets."""

import sys

import numpy as np
import pytest
from tools.probes import npu_models
from tools.probes.npu_models import Skipped


@pytest.mark.parametrize("name", ["matrix_product", "token_product", "photo_means"])
def test_they_are_made_as_onnx_wants_them(name):
    """By its own checker."""
    onnx = pytest.importorskip("onnx")
    onnx.checker.check_model(onnx.load_model_from_string(getattr(npu_models, name)()))


def test_products_have_the_same_weights():
    """So one reference is good for both."""
    onnx = pytest.importorskip("onnx")
    made = (npu_models.matrix_product(), npu_models.token_product())
    first, second = (
        onnx.numpy_helper.to_array(onnx.load_model_from_string(model).graph.initializer[0])
        for model in made
    )
    assert np.array_equal(first, second)


def test_without_the_package_nothing_can_be_asked(monkeypatch):
    """It says what is missing."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(Skipped, match="the package onnx"):
        npu_models.photo_means()
