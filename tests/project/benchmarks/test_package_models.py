"""The table of model files that packages ship."""

from tools.probes.package_models import Outcome, lines


def test_a_file_has_a_line_with_its_verdict():
    """And with the largest difference, where it was asked."""
    head, right, refused = lines(
        [
            Outcome(file="a/model.onnx", verdict="right", figure="2e-07"),
            Outcome(file="b.onnx", verdict="refused at load: no"),
        ]
    )
    assert head.split()[:2] == ["file", "verdict"]
    assert right.split() == ["a/model.onnx", "right", "2e-07"]
    assert refused.split(maxsplit=1) == ["b.onnx", "refused at load: no"]
