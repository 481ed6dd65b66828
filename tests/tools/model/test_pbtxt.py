"""One value set in files as people write them: a parameter, or a number in a block of the host's."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from ge_tools.model.pbtxt import parameter_line, read_fields, set_number, set_parameter

KEY = "buckets.length"
BLOCK, NAME = "dynamic_batching", "max_queue_delay_microseconds"
NEW = "dynamic_batching { max_queue_delay_microseconds: 5 }"
TEXT = """\
# dynamic_batching { }
max_batch_size: 8
input [ { name: "x" dims: [ -1, 4 ] }, < name: 'y' 'z'; > ]
"""


def meaning(text):
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            'parameters { key: "buckets.length" value { string_value: "1,2" } } # why',
            'parameters { key: "buckets.length" value { string_value: "8,16" } } # why',
        ),
        (
            "parameters: <\n  # ours\n  key: 'buckets.' 'length',\n  value: < string_value: '1' >;\n>\n",
            "parameters: <\n  # ours\n  key: 'buckets.' 'length',\n  value: < string_value: \"8,16\" >;\n>\n",
        ),
        (
            (
                'parameters [ { key: "a" value { string_value: "1" } },\n'
                '  { value { string_value: "1,"\n      "2" } key: "buckets.length" } ]'
            ),
            (
                'parameters [ { key: "a" value { string_value: "1" } },\n'
                '  { value { string_value: "8,16" } key: "buckets.length" } ]'
            ),
        ),
        (
            'parameters { key: "buckets.length" value { string_value: "1," # low\n"2" } }',
            'parameters { key: "buckets.length" value { string_value: "8,16" # low\n } }',
        ),
        (
            (
                'parameters { key: "buckets.length" value { string_value: "1" } }\n'
                'parameters { key: "buckets.length" value { string_value: "2,3,4" } }\n'
            ),
            (
                'parameters { key: "buckets.length" value { string_value: "8,16" } }\n'
                'parameters { key: "buckets.length" value { string_value: "8,16" } }\n'
            ),
        ),
    ],
)
def test_a_value_is_replaced_where_it_is(before, after):
    """Whatever brackets, lines and comments are around it stay."""
    assert set_parameter(before, KEY, "8,16") == after
    assert meaning(after).parameters[KEY].string_value == "8,16"


@pytest.mark.parametrize(
    "before",
    [
        "",
        'backend: "ge"',
        "max_batch_size: 8  # no end of line",
        '# parameters { key: "buckets.length" value { string_value: "1" } }\n',
        'parameters { key: "buckets.rows" value { string_value: "buckets.length" } }\n',
        'parameters { key: "buckets.length" }\n',
        'parameters { key: "note" value { string_value: "a # b \\" } {" } }\n',
        'input { name: "parameters" data_type: TYPE_FP32 dims: [ -1, 4 ] }\n',
    ],
)
def test_a_new_parameter_is_the_last_line(before):
    """What only looks like the parameter, in comments and strings, is left alone."""
    after = set_parameter(before, KEY, "8,16")
    assert after.startswith(before)
    assert after.endswith(f"\n{parameter_line(KEY, '8,16')}\n") or not before
    expected = meaning(before)
    expected.parameters[KEY].string_value = "8,16"
    assert meaning(after) == expected


def test_names_and_values_are_quoted():
    """An axis is called what the model file calls it."""
    key, value = 'buckets.a"b\\c é', "1,2"
    assert meaning(parameter_line(key, value)).parameters[key].string_value == value


@given(
    values=st.dictionaries(
        st.sampled_from([KEY, "buckets.rows", "note"]),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
        max_size=3,
    ),
    data=st.data(),
)
def test_whatever_the_layout_only_the_parameter_changes(values, data):
    """The text before and after mean the same but for the one value."""
    message = model_config_pb2.ModelConfig(name="m", max_batch_size=3)
    for key, value in values.items():
        message.parameters[key].string_value = value
    before = text_format.MessageToString(
        message, as_one_line=data.draw(st.booleans()), pointy_brackets=data.draw(st.booleans())
    )
    message.parameters[KEY].string_value = "8,16"
    after = set_parameter(before, KEY, "8,16")
    assert meaning(after) == message
    assert set_parameter(after, KEY, "8,16") == after


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


def test_a_field_knows_where_its_values_are():
    """Comments are no fields; a list is several values; strings may be in pieces."""
    size, inputs = read_fields(TEXT)
    assert (size.name, inputs.name) == ("max_batch_size", "input")
    assert [TEXT[begin:end] for begin, end in size.words] == ["8"]
    x, y = inputs.messages
    assert [TEXT[slice(*m.inside)] for m in (x, y)] == [
        ' name: "x" dims: [ -1, 4 ] ',
        " name: 'y' 'z'; ",
    ]
    assert [TEXT[slice(*span)] for span in x.fields[1].words] == ["-1", "4"]
    assert [TEXT[slice(*span)] for span in y.fields[0].texts] == ["'y'", "'z'"]


def test_an_empty_text_has_no_fields():
    """Nor has one of comments only."""
    assert read_fields("") == read_fields("# nothing") == []
