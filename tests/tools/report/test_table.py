from ge_tools.report.table import table


def test_columns_are_right_aligned_and_the_last_ones_left():
    """Numbers line up; a long last column, such as a list, begins where its header does."""
    assert table(("a", "size", "list"), [("now", "5", "1,2"), ("", "100", "7")], left=1) == [
        "  a  size  list",
        "now     5  1,2",
        "      100  7",
    ]


def test_names_begin_the_line():
    """A first column of names reads better from the left."""
    assert table(("model", "size"), [("a", "5"), ("encoder", "100")], names=1) == [
        "model    size",
        "a           5",
        "encoder   100",
    ]


def test_without_rows_there_is_a_header():
    """An empty table is still one."""
    assert table(("size", "most"), []) == ["size  most"]
