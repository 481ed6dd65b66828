"""A number in a block of the host's own, in files as people write them."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from ge_backend.cli.model.pbtxt_number import set_number

BLOCK, NAME = "dynamic_batching", "max_queue_delay_microseconds"
NEW = "dynamic_batching { max_queue_delay_microseconds: 5 }"


def meaning(text):
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 5 }"),
        ("dynamic_batching {}", "dynamic_batching { max_queue_delay_microseconds: 5 }"),
        ("dynamic_batching: <>", "dynamic_batching: < max_queue_delay_microseconds: 5 >"),
        (
            "dynamic_batching { max_queue_delay_microseconds: 100 } # why",
            "dynamic_batching { max_queue_delay_microseconds: 5 } # why",
        ),
        (
            "dynamic_batching { preferred_batch_size: [ 4, 8 ] }",
            "dynamic_batching { max_queue_delay_microseconds: 5 preferred_batch_size: [ 4, 8 ] }",
        ),
        (
            "dynamic_batching {  # ours\n    # these\n    preferred_batch_size: 4  # and so on\n}\n",
            (
                "dynamic_batching {  # ours\n    max_queue_delay_microseconds: 5\n    # these\n"
                "    preferred_batch_size: 4  # and so on\n}\n"
            ),
        ),
        (
            "dynamic_batching {\n}\n",
            "dynamic_batching {\n  max_queue_delay_microseconds: 5\n}\n",
        ),
        (
            "# dynamic_batching { }\nmax_batch_size: 4",
            f"# dynamic_batching {{ }}\nmax_batch_size: 4\n{NEW}\n",
        ),
        ("", f"{NEW}\n"),
    ],
)
def test_only_the_number_changes(before, after):
    """In its place, as the first field of its block, or in a new block at the end."""
    assert set_number(before, BLOCK, NAME, 5, new_block=NEW) == after
    expected = meaning(before)
    expected.dynamic_batching.max_queue_delay_microseconds = 5
    assert meaning(after) == expected
    assert set_number(after, BLOCK, NAME, 5, new_block=NEW) == after


def test_a_list_of_one_block():
    """As `instance_group` is written mostly."""
    before = "instance_group [\n  {\n    kind: KIND_CPU\n  }\n]\n"
    after = set_number(before, "instance_group", "count", 2, new_block="never")
    assert after == "instance_group [\n  {\n    count: 2\n    kind: KIND_CPU\n  }\n]\n"


@given(
    preferred=st.lists(st.integers(1, 8), max_size=2),
    delay=st.none() | st.integers(1, 1000),
    data=st.data(),
)
def test_whatever_the_layout_only_the_number_changes(preferred, delay, data):
    """The text before and after mean the same but for the number."""
    message = model_config_pb2.ModelConfig(name="m", max_batch_size=3)
    message.dynamic_batching.preferred_batch_size.extend(preferred)
    if delay is not None:
        message.dynamic_batching.max_queue_delay_microseconds = delay
    before = text_format.MessageToString(
        message, as_one_line=data.draw(st.booleans()), pointy_brackets=data.draw(st.booleans())
    )
    message.dynamic_batching.max_queue_delay_microseconds = 5
    after = set_number(before, BLOCK, NAME, 5, new_block=NEW)
    assert meaning(after) == message
