"""What engines take of memory: the table, and the buckets that it is of."""

from tools.probes.engine_memory import BUCKETS, STAGES, measured, table


def test_the_first_engine_is_what_others_are_compared_with():
    """By what they have in the end."""
    lines = table({"a": [1.0, 2.0, 3.0, 200.0], "bb": [1.0, 2.0, 3.0, 500.0]}).splitlines()
    assert [line.split() for line in lines] == [
        ["engine", *STAGES, "x"],
        ["a", "1", "2", "3", "200", "1.00"],
        ["bb", "1", "2", "3", "500", "2.50"],
    ]


def test_there_are_more_buckets_than_bodies():
    """So that both of OpenVINO's models run."""
    assert len(BUCKETS) == len(set(BUCKETS)) > 16


def test_memory_is_measured_after_each_stage(example_models):
    """Nothing that is loaded and run takes no memory."""
    path = example_models / "mean_embedding" / "1" / "model.onnx"
    sizes = measured("onnxruntime", path, None)
    assert len(sizes) == len(STAGES)
    assert all(size > 1 for size in sizes)
