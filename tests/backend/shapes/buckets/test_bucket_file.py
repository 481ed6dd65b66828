import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets.bucket_file import PAGED_LEAST, parse_buckets, read_buckets


def refused_here(case):
    """Return whether the reference silently changed or dropped something that it read.

    Or made buckets that nothing can run in, more than are taken here, or none.
    """
    entries = case["prompt"] + case["decode"]
    impossible = any(
        not least <= size < 2**31
        for entry in entries
        for size, least in zip(entry, PAGED_LEAST, strict=True)
    )
    lines = [line.strip() for line in case["text"].splitlines()]
    changed = any(changes(node) for line in lines for node in ast.walk(ast.parse(line)))
    return impossible or changed or not 1 <= len(entries) <= 10_000


def changes(node):
    """Return whether the reference makes another number of this, or none."""
    if isinstance(node, ast.Constant):
        return type(node.value) is not int
    if isinstance(node, ast.Call):
        return not range(*map(ast.literal_eval, node.args))
    return isinstance(node, ast.List) and not node.elts


def test_reproduces_the_reference(golden):
    """Files that the reference reads give its buckets; what it crashes on or mends is refused."""
    for case in golden("file_parse"):
        if "error" in case or refused_here(case):
            with pytest.raises(ConfigError, match=r"f\.txt"):
                parse_buckets(case["text"], "f.txt")
        else:
            expected = {tuple(entry) for entry in case["prompt"] + case["decode"]}
            assert parse_buckets(case["text"], "f.txt") == sorted(expected), case["name"]


@pytest.mark.parametrize(
    ("text", "entries", "refused"),
    [
        ("(1, 128, [0, 4])\n# (1.5,)\n", [(1, 128, 0), (1, 128, 4)], False),
        ("(1, -128, +4)", [(1, -128, 4)], True),
        ("(1, 1e3, 0)", [(1, 1000, 0)], True),
        ("(True, 128, 0)", [(1, 128, 0)], True),
        ("('1', 128, 0)", [(1, 128, 0)], True),
        ("(1, range(5, 5), 0)\n(1, 64, 0)", [(1, 64, 0)], True),
        ("(1, [], 0)\n(1, 64, 0)", [(1, 64, 0)], True),
        ("(1, 2147483648, 0)", [(1, 2**31, 0)], True),
        ("# nothing", [], True),
        ("(1, 1, range(0, 10001))", [(1, 1, n) for n in range(10_001)], True),
    ],
)
def test_reference_cases_are_told_apart(text, entries, refused):
    """Which files of the reference are refused goes by what is in them."""
    assert refused_here({"text": text, "prompt": entries, "decode": []}) == refused


def test_one_form_of_everything():
    """Numbers, lists and ranges mix freely; comments and blank lines do not count."""
    text = """
    # rows, length, blocks
    (2, 128, 0)  # one
    ([1, 4], 64, range(0, 3))
    8, 1, range(+9, 3, -3)
    (+1, [+64], +2)
    """
    expected = [(1, 64, 0), (1, 64, 1), (1, 64, 2), (2, 128, 0)]
    expected += [(4, 64, 0), (4, 64, 1), (4, 64, 2), (8, 1, 6), (8, 1, 9)]
    assert parse_buckets(text, "f") == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("(1, 2)", "expected 3 places"),
        ("(1, 2, 3, 4)", "expected 3 places"),
        ("(1, 2, 3),", "expected 3 places"),
        ("[1, 2, 3]", "expected 3 places"),
        ("hello world", "expected one entry such as"),
        ("(1, 2, 3", "expected one entry such as"),
        ("(1, 2, 3) (4, 5, 6)", "range"),
        ("(1, 1.5, 3)", "whole numbers"),
        ("(1, 2.0, 3)", "whole numbers"),
        ("(1, True, 3)", "whole numbers"),
        ("(1, None, 3)", "whole numbers"),
        ("(1, '2', 3)", "whole numbers"),
        ("(1, 2 ** 7, 3)", "whole numbers"),
        ("(1, --2, 3)", "whole numbers"),
        ("(1, ++2, 3)", "whole numbers"),
        ("(1, ~2, 3)", "whole numbers"),
        ("(1, [2, [3]], 3)", "whole numbers"),
        ("(1, (2, 3), 3)", "whole numbers"),
        ("(1, [range(2, 4)], 3)", "whole numbers"),
        ("(1, *[2], 3)", "whole numbers"),
        ("(1, [], 3)", "empty list"),
        ("(1, range(9), 3)", "range"),
        ("(1, range(1, 9, 0), 3)", "step not 0"),
        ("(1, range(first=1), 3)", "range"),
        ("(1, range(9, 1), 3)", "1 to 10000 numbers"),
        ("(1, range(1, 10002), 3)", "1 to 10000 numbers"),
        (f"(1, range(1, {'9' * 40}), 3)", "1 to 10000 numbers"),
        ("(1, exec(1, 2), 3)", "range"),
        ("(1, x.range(1, 2), 3)", "range"),
        ("(0, 1, 0)", "place 1 is 0"),
        ("(1, 0, 0)", "place 2 is 0"),
        ("(1, 1, -1)", "place 3 is -1"),
        ("(1, 2147483648, 0)", "place 2 is 2147483648"),
        ("(range(1, 200), range(1, 200), 0)", "to 39602 buckets"),
        ("-" * 5000 + "1", "f.txt"),
        ("(" * 5000, "f.txt"),
        ("(1, 2, 3)\0", "f.txt"),
        ("(1, " + "9" * 5000 + ", 3)", "f.txt"),
    ],
)
def test_a_bad_line_is_named(line, said):
    """One error names the file, the line number, the text and what was expected."""
    with pytest.raises(ConfigError, match=said) as caught:
        parse_buckets(f"(1, 128, 0)\n\n{line}\n(2, 128, 0)\n", "f.txt")
    assert str(caught.value).startswith("f.txt, line 3: ")


def test_nothing_is_evaluated(tmp_path):
    """Code in a file is refused, not run."""
    trace = tmp_path / "trace"
    with pytest.raises(ConfigError):
        parse_buckets(f"(open({str(trace)!r}, 'w'), 1, 1)", "f")
    assert not trace.exists()


def test_many_lines_are_bounded():
    """A file of more than ten thousand buckets is an error at the line that goes beyond."""
    lines = [f"({row}, range(1, 101), 0)" for row in range(1, 102)]
    assert len(parse_buckets("\n".join(lines[:100]), "f")) == 10_000
    with pytest.raises(ConfigError, match=r"line 101: .*to 10100 buckets"):
        parse_buckets("\n".join(lines), "f")


def test_an_empty_file_is_an_error():
    """A file without entries says what entries look like."""
    with pytest.raises(ConfigError, match=r"no entries; expected lines such as \(4,"):
        parse_buckets("# nothing\n\n", "f")


def test_other_numbers_of_places():
    """A model with two ragged axes or none has entries of three places or one."""
    assert parse_buckets("(4,)\n([1, 2],)", "f", least=(1,)) == [(1,), (2,), (4,)]
    assert parse_buckets("(4, 16)", "f", least=(1, 1)) == [(4, 16)]
    with pytest.raises(ConfigError, match="expected 2 places"):
        parse_buckets("(4, 16, 0)", "f", least=(1, 1))


def test_whoever_reads_a_file_may_refuse_entries():
    """A product keeps the others; a line that has none is an error, with the first one's reason."""

    def unusable(entry):
        return f"{entry[0]} is too many" if entry[0] > 1 else None

    assert parse_buckets("([1, 2], 128, 4)", "f", unusable=unusable) == [(1, 128, 4)]
    with pytest.raises(ConfigError, match=r"^f, line 2: '\(\[2, 3\], 128, 4\)': 2 is too many$"):
        parse_buckets("(1, 64, 0)\n([2, 3], 128, 4)\n", "f", unusable=unusable)


def test_reads_files(tmp_path):
    """A byte order mark and Windows line ends do no harm."""
    path = tmp_path / "buckets.txt"
    path.write_bytes(b"\xef\xbb\xbf(1, 128, 0)\r\n(2, 1, 4)\r\n")
    assert read_buckets(path) == [(1, 128, 0), (2, 1, 4)]


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_an_unreadable_file_is_named(tmp_path, content):
    """A missing file, or one that is not text, is one error that names it."""
    path = tmp_path / "buckets.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"buckets.txt cannot be read"):
        read_buckets(path)


@given(text=st.text(alphabet="()[],0123456789 -#range\n.x'", max_size=60))
def test_any_text_gives_buckets_or_one_error(text):
    """Whatever is in a file, the answer is buckets or a ConfigError."""
    try:
        entries = parse_buckets(text, "f")
    except ConfigError:
        return
    assert entries == sorted(set(entries))
    assert all(len(e) == 3 and e[0] >= 1 and e[1] >= 1 and e[2] >= 0 for e in entries)
