"""The page that shows a request's way through the code shows it in the order in which it is gone."""

import json
import re
import sys

import numpy as np
import pytest

from builders.host_config import instance_of
from builders.pages import ROOT
from builders.roots import BACKEND, ROOTS

PACKAGE = ROOTS[BACKEND]
STEPS = (ROOT / "docs" / "architecture.md").read_text().partition("A test goes this way")[0]
# `host/backend.py: Backend.execute`
NAMED = dict.fromkeys(re.findall(r"`([a-z_/]+\.py): (?:\w+\.)?(\w+)`", STEPS))
GRAPH = {
    "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
    "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch", "length"], "of": "x"}],
}
TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
SETTINGS = {"device": "null", "executor": "inline", "warmup": "off"}


@pytest.fixture
def backend(pb_utils, tmp_path, monkeypatch):
    """A model on the null device, whose staged runs the thread makes that waits for them."""
    from ge_backend.host.backend import Backend

    monkeypatch.setenv("GE_CACHE_DIR", "off")
    monkeypatch.setattr("ge_backend.executor.client.session.Session.runs_here", False)
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path))
    (tmp_path / "model.null").write_text(json.dumps(GRAPH))
    document = {
        "name": "m",
        "max_batch_size": 4,
        "input": [{"name": "x", **TENSOR}],
        "output": [{"name": "y", **TENSOR}],
        "parameters": {key: {"string_value": value} for key, value in SETTINGS.items()},
    }
    backend = Backend.open(instance_of(document))
    yield backend
    backend.close()


def test_the_page_names_functions_in_the_order_in_which_a_request_enters_them(backend, pb_utils):
    """One request, whose one thread goes the whole way; what it does not need is left out."""
    entered = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            entered.setdefault((code.co_filename[len(str(PACKAGE)) + 1 :], code.co_name))

    x = pb_utils.Tensor("x", np.ones((1, 3), np.float32))
    request = pb_utils.InferenceRequest([x], ["y"])
    sys.setprofile(note)
    try:
        (response,) = backend.execute([request])
    finally:
        sys.setprofile(None)
    assert not response.has_error()
    order = list(entered)
    gone = [place for place in NAMED if place in entered]
    assert gone == sorted(gone, key=order.index)
    assert len(gone) >= 14
