"""Triton's own fields that somebody should hear of."""

import pytest

from ge_backend.model.config.host_fields import stalling, unread

PINNED = {"input_pinned_memory": {"enable": True}, "output_pinned_memory": {"enable": True}}


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (
            {"optimization": {"execution_accelerators": {"cpu_execution_accelerator": [{}]}}},
            "optimization.execution_accelerators",
        ),
        (
            {"optimization": {"graph": {"level": 1}, "cuda": {"graphs": True}, **PINNED}},
            "optimization.graph, optimization.cuda",
        ),
        ({"cc_model_filenames": {"7.5": "t4.plan"}}, "cc_model_filenames"),
    ],
)
def test_what_only_other_backends_read_is_named(said, named):
    """What a C++ backend would do for it is said not to be done."""
    (note,) = unread(said)
    assert note.startswith(f"{named}: no effect with this backend; docs/from_cpp_backends.md")


def test_what_the_host_fills_in_is_not_named():
    """No model is told of fields that nobody has written."""
    assert unread({}) == unread({"optimization": PINNED, "cc_model_filenames": {}}) == ()
    filled = {"preserve_ordering": False, "priority_levels": 0, "priority_queue_policy": {}}
    assert stalling({}) == stalling({"dynamic_batching": filled}) == ()


def test_queue_policies_of_the_host_are_named():
    """Whoever brings them along meets late answers, and would look for the reason elsewhere."""
    policy = {"default_queue_policy": {"max_queue_size": 8}, "priority_levels": 2}
    (note,) = stalling({"dynamic_batching": policy})
    assert note.startswith("dynamic_batching has priority_levels, default_queue_policy: with any")
