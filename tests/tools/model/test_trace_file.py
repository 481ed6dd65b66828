import pytest

from ge_backend.errors import ConfigError
from ge_tools.model.trace_file import parse_trace, read_trace


def points(histograms):
    return {axis: histogram.points() for axis, histogram in histograms.items()}


def test_a_size_a_line(tmp_path):
    """Comments and empty lines say nothing; a request has one row."""
    path = tmp_path / "t.txt"
    path.write_text("# lengths\n17\n\n 3  # a short one\n17\n")
    assert points(read_trace(path, ["sequence"])) == {"sequence": [(3, 1), (17, 2)]}


def test_json_lines_name_axes_and_rows():
    """A request of several rows counts once per row on each axis; forms may be mixed."""
    lines = ['{"rows": 4, "sizes": {"q": 5, "d": 90}}', '{"sizes": {"d": 7, "q": 5}}']
    assert points(parse_trace(lines, "t", ["q", "d"])) == {
        "q": [(5, 5)],
        "d": [(7, 1), (90, 4)],
    }
    mixed = ["5", '{"rows": 2, "sizes": {"q": 6}}']
    assert points(parse_trace(mixed, "t", ["q"])) == {"q": [(5, 1), (6, 2)]}


@pytest.mark.parametrize(
    "line",
    [
        "five",
        "1.5",
        "-3",
        "3 4",
        "²",
        "99999999999",
        "9" * 5000,
        "[17]",
        '{"sizes": {"q": 5}',
        '{"sizes": 5}',
        '{"rows": 1}',
        '{"size": {"q": 5}}',
        '{"sizes": {"d": 5}}',
        '{"sizes": {"q": 5, "d": 5}}',
        '{"sizes": {"q": 5.0}}',
        '{"sizes": {"q": true}}',
        '{"sizes": {"q": -1}}',
        '{"sizes": {"q": 5}, "rows": 0}',
        '{"sizes": {"q": 5}, "rows": "1"}',
        '{"sizes": {"q": 5}, "row": 1}',
        "{" + '"a":[' * 20 + "x" * 100,
    ],
)
def test_a_line_that_cannot_be_used_is_named(line):
    """File, line, its text and an example of what was expected; nothing is skipped."""
    with pytest.raises(ConfigError) as caught:
        parse_trace(["4", line], "t.txt", ["q"])
    message = str(caught.value)
    assert message.startswith("t.txt, line 2: ")
    assert repr(line[:80])[:-1] in message
    assert '{"rows": 1, "sizes": {"q": 17}}' in message
    assert len(message) < 400


def test_a_line_that_nests_too_deeply_is_named():
    """It is no reason to end a command with a traceback."""
    with pytest.raises(ConfigError, match=r"^t\.txt, line 1: .*no JSON"):
        parse_trace(['{"sizes": ' + "[" * 100_000], "t.txt", ["q"])


def test_plain_sizes_need_one_axis():
    """With two axes a lone number does not say which it is."""
    with pytest.raises(ConfigError, match="this model has the ragged axes q, d"):
        parse_trace(["4"], "t", ["q", "d"])


def test_files_that_cannot_be_used(tmp_path):
    """Missing, empty and binary files are one error each."""
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("# nothing\n")
    binary.write_bytes(b"\xff\xfe\x00")
    for path, said in (
        (empty, "no requests"),
        (binary, "cannot be read"),
        (tmp_path / "x", "read"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            read_trace(path, ["q"])
        assert str(path) in str(caught.value)
