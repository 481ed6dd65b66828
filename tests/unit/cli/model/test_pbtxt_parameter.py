import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from ge_backend.cli.model.pbtxt_parameter import parameter_line, set_parameter

KEY = "buckets.length"


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
