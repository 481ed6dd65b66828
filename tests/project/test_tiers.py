"""The two tiers of tests, and the order in which files begin."""

from pathlib import Path

import pytest

from tiers import HERE, LONG, is_long, longest_first, read_durations, written_durations

REPORT = """<testsuites><testsuite>
<testcase classname="tests.project.test_tiers" name="a" time="2.04"/>
<testcase classname="tests.project.test_tiers" name="b" time="0.5"/>
<testcase classname="tests.project.test_tree" name="c" time="0.2"/>
<testcase classname="tests.server.test_wheel.Wheel" name="d" time="30"/>
</testsuite></testsuites>"""


@pytest.mark.parametrize("name", LONG)
def test_what_the_table_names_is_there(name):
    """A file that was moved or renamed would silently come back into `make test`."""
    assert (HERE / name).exists()


def test_a_folder_stands_for_its_files():
    """All tests of the simulator are long, and none of the product's own devices."""
    assert is_long(HERE / "project/acl_simulator/test_facts.py")
    assert is_long(HERE / "server/test_wheel.py")
    assert not is_long(HERE / "server/test_serving.py")
    assert not is_long(Path("/elsewhere/test_wheel.py"))


def test_durations_are_summed_by_file(tmp_path):
    """Of a JUnit report, classes of tests among them; what takes a second or less is left out."""
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    durations = written_durations(report)
    assert list(durations.items()) == [
        ("server/test_wheel.py", 30.0),
        ("project/test_tiers.py", 2.5),
    ]


def test_the_longest_files_begin_first():
    """Files that nothing is known of come behind them, in the order in which they are listed."""
    durations = {"unit/b.py": 9.0, "unit/c.py": 20.0}
    files = [HERE / f"unit/{name}.py" for name in "dabc"]
    ordered = sorted(files, key=lambda path: longest_first(path, durations))
    assert [path.stem for path in ordered] == ["c", "b", "d", "a"]


def test_files_with_the_real_server_come_before_all_others():
    """In turns with others, each of these would wait for the servers before it to end."""
    durations = {"unit/a.py": 9.0, "server/b.py": 2.0, "server/c.py": 3.0}
    files = [HERE / f"{name}.py" for name in ("unit/a", "server/b", "server/c")]
    ordered = sorted(files, key=lambda path: longest_first(path, durations))
    assert [path.stem for path in ordered] == ["c", "b", "a"]


def test_kept_durations_are_of_files_that_are_there():
    """Those of files that were moved are measured anew: `python tests/durations.py REPORT.xml`."""
    assert all((HERE / name).is_file() for name in read_durations())
