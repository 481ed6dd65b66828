"""The ensemble benchmark: texts, requests and tables."""

from benchmarks.bench_fused import (
    FUSED,
    WAYS,
    Window,
    draw_texts,
    lines,
    request,
    step_lines,
)
from tritonclient.grpc import service_pb2


def test_texts_are_of_very_different_lengths():
    """The same ones every time, from one word up."""
    texts = draw_texts(1)
    lengths = sorted(len(text.split()) for text in texts)
    assert texts == draw_texts(1)
    assert lengths[0] <= 2
    assert lengths[-1] >= 50


def test_a_request_holds_its_tensors_and_what_it_wants():
    """As the server reads it."""
    message = request("m", {"x": ("FP32", (1, 2), b"12345678")}, ["y"])
    read = service_pb2.ModelInferRequest.FromString(message)
    assert (read.inputs[0].name, list(read.inputs[0].shape)) == ("x", [1, 2])
    assert list(read.raw_input_contents) == [b"12345678"]
    assert [output.name for output in read.outputs] == ["y"]


def test_ways_are_compared_within_rounds():
    """`fused x` is the median of each round's ratio."""
    windows = [
        Window(
            way=way,
            concurrency=4,
            round_number=number,
            per_s=base * (2 if way == FUSED else 1),
            latencies_ms=[1.0, 3.0],
            bytes_per_request=100.0,
        )
        for number, base in enumerate((10.0, 20.0, 40.0))
        for way in WAYS
    ]
    _, fused, *others = lines(windows)
    assert fused.split()[-4:] == ["1.00", "3.00", "100", "1.00"]
    assert [line.split()[-1] for line in others] == ["2.00"] * 3


def test_steps_have_shares():
    """Of the whole time."""
    first, second = step_lines({"a": 3.0, "b": 1.0})
    assert first.split() == ["a", "3.00", "s", "75", "%"]
    assert second.split() == ["b", "1.00", "s", "25", "%"]
