"""Which way is chosen of those that were measured, and what is printed of them."""

import json

import pytest

from ge_tools.model.as_served import Measured
from ge_tools.model.ways import Way
from ge_tools.report.ways import Comparison, comparison_json, comparison_text

NOW = Way(engine="onnxruntime", precision="origin")
OTHER = Way(engine="openvino", precision="origin")
LOWER = Way(engine="openvino", precision="bf16")
FINER = Way(engine="openvino", precision="origin", buckets=(("buckets.length", "20,64"),))


def came(requests_per_s, *, bucketed=False, computed_in="origin"):
    return Measured(
        requests_per_s=requests_per_s,
        p50_s=0.01,
        p99_s=0.02,
        cpu_s=0.005,
        memory_bytes=300 << 20,
        bucketed=bucketed,
        computed_in=computed_in,
    )


def compared(found, *allowed):
    given = allowed or ("origin",)
    return Comparison(model="m", load="16 requests", found=found, now=NOW, allowed=given)


@pytest.mark.parametrize(
    ("found", "allowed", "set_to"),
    [
        ({NOW: came(100), OTHER: came(120)}, (), {"engine": "openvino"}),
        ({NOW: came(100), OTHER: came(104)}, (), {}),
        ({NOW: came(100), OTHER: came(90)}, (), {}),
        ({NOW: came(100), OTHER: "no such operator"}, (), {}),
        ({NOW: "no memory", OTHER: came(1)}, (), {"engine": "openvino"}),
        ({NOW: came(100), LOWER: came(900, computed_in="bf16")}, (), {}),
        ({NOW: came(100), LOWER: came(900)}, ("bf16",), {}),  # the processor has no BF16
        (
            {NOW: came(100), LOWER: came(101, computed_in="bf16")},
            ("bf16",),
            {"engine": "openvino", "precision": "bf16"},
        ),
        (
            {NOW: came(100), OTHER: came(110), FINER: came(111)},
            (),
            {"engine": "openvino", "buckets.length": "20,64"},
        ),
        ({NOW: "no", OTHER: "no"}, (), {}),
    ],
)
def test_what_is_set(found, allowed, set_to):
    """The fastest of an allowed precision, where it is clearly faster, and only what differs."""
    assert compared(found, *allowed).parameters() == set_to


def test_a_table_to_read():
    """The fastest first; then what was left out and why, what a precision brings, and the lines."""
    found = {NOW: came(100), OTHER: came(120.04, bucketed=True), FINER: "no room"}
    found[LOWER] = came(300, computed_in="bf16")
    lines = comparison_text(compared(found), None)
    assert lines[0] == "model m: 16 requests"
    cells = [line.split() for line in lines if line.startswith(("on", "op"))]
    assert cells == [
        ["openvino", "bf16", "any", "300.0", "10.0", "20.0", "5.00", "300"],
        ["openvino", "origin", "as", "now", "120.0", "10.0", "20.0", "5.00", "300"],
        ["onnxruntime", "(now)", "origin", "any", "100.0", "10.0", "20.0", "5.00", "300"],
    ]
    assert "left out: openvino origin 20,64: no room" in lines
    assert any(line.startswith("faster in another precision: openvino bf16") for line in lines)
    assert lines[-1] == 'parameters { key: "engine" value { string_value: "openvino" } }'


def test_what_is_applied_is_shown():
    """With how the server comes to use it; where nothing is, that is said."""
    lines = comparison_text(compared({NOW: came(1), OTHER: came(2)}), "-a\n+b")
    assert lines[-2] == "-a\n+b"
    assert lines[-1].endswith("curl -X POST localhost:8000/v2/repository/models/m/load")
    lines = comparison_text(compared({NOW: came(1)}), "")
    assert lines[-1] == "nothing is at least 5% faster than what serves it now"


def test_all_figures_as_json():
    """A way that cannot be served has a reason in their place."""
    told = json.loads(comparison_json(compared({NOW: came(1), OTHER: "no room"}), None))
    assert told["now"] == {"engine": "onnxruntime", "precision": "origin"}
    assert told["ways"][0]["requests_per_s"] == 1
    assert told["ways"][1] == {
        "parameters": {"engine": "openvino", "precision": "origin"},
        "why": "no room",
    }
    assert (told["parameters"], told["diff"]) == ({}, None)


def test_a_precision_that_is_not_here_is_shown_and_not_recommended():
    """It was computed in another one, and is the fastest by chance."""
    found = {NOW: came(100), LOWER: came(300)}
    lines = comparison_text(compared(found), None)
    assert any("bf16 (as origin)" in line for line in lines)
    assert not any("faster in another precision" in line for line in lines)
