"""Where fields and values are in a text."""

from ge_tools.model.pbtxt import read_fields

TEXT = """\
# dynamic_batching { }
max_batch_size: 8
input [ { name: "x" dims: [ -1, 4 ] }, < name: 'y' 'z'; > ]
"""


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
