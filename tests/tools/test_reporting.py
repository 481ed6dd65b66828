"""`ge-backend report`, with a recording made up."""

import json

import pytest

from builders.recordings import recording
from ge_tools import reporting
from ge_tools.main import main


@pytest.fixture
def watched(monkeypatch):
    asked = []

    def record(url, seconds, say):
        asked.append((url, seconds))
        say("1 of 3 s")
        return recording()

    monkeypatch.setattr(reporting, "record", record)
    return asked


def test_it_writes_the_page(watched, tmp_path, ge_backend):
    """And says where it is; how it goes is on stderr."""
    out = tmp_path / "report.html"
    code, stdout, stderr = ge_backend(
        *("report", "--url", "http://here:1/metrics", "--seconds", "3", "--output", out)
    )
    assert (code, stdout) == (0, f"wrote {out}\n")
    assert stderr == "1 of 3 s\n"
    assert watched == [("http://here:1/metrics", 3.0)]
    assert "encoder" in out.read_text()


def test_all_runs_go_into_a_trace_where_one_is_wanted(watched, tmp_path, ge_backend):
    """Beside the page."""
    page, runs = tmp_path / "report.html", tmp_path / "runs.json"
    code, stdout, _ = ge_backend("report", "--output", page, "--trace", runs)
    assert (code, stdout) == (0, f"wrote {page}\nwrote {runs}\n")
    assert json.loads(runs.read_text())["traceEvents"]


def test_on_a_terminal_progress_stays_in_one_line(watched, tmp_path, monkeypatch, capsys):
    """Each look takes the last one's place."""
    monkeypatch.setattr(reporting.sys.stderr, "isatty", lambda: True)
    assert main(["report", "--output", str(tmp_path / "report.html")]) == 0
    assert capsys.readouterr().err == "\r\033[K1 of 3 s\n"


def test_a_place_that_cannot_be_written_is_one_line(watched, tmp_path, ge_backend):
    """And the code of a usage error."""
    code, _, stderr = ge_backend("report", "--output", tmp_path / "no" / "report.html")
    assert code == 2
    assert "cannot be written" in stderr


@pytest.mark.parametrize("option", ["--output", "--trace"])
@pytest.mark.parametrize("place", ["no/report.html", f"{__file__}/report.html", ""])
def test_such_a_place_is_told_before_anything_is_watched(
    watched, tmp_path, ge_backend, option, place
):
    """An hour may be lost else; nothing is written either."""
    given = {"--output": tmp_path / "report.html", option: tmp_path / place}
    code, _, stderr = ge_backend("report", *(word for pair in given.items() for word in pair))
    assert code == 2
    assert f"{tmp_path / place} cannot be written; see {option}" in stderr
    assert watched == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("trace", ["both", "./x/../both", "link"])
def test_page_and_trace_in_one_file_are_refused(watched, tmp_path, ge_backend, trace):
    """One would be written over the other, whatever the two call it."""
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to("both")
    code, _, stderr = ge_backend(
        "report", "--output", tmp_path / "both", "--trace", f"{tmp_path}/{trace}"
    )
    assert code == 2
    assert f"--output and --trace are one file, {tmp_path / 'both'}" in stderr
    assert watched == []
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("seconds", ["0", "-1", "1e9", "soon"])
def test_a_time_that_makes_no_sense_is_refused(seconds, capsys):
    """Before anything is watched."""
    with pytest.raises(SystemExit):
        main(["report", "--seconds", seconds])
    assert "--seconds" in capsys.readouterr().err


def test_no_server_is_one_line(capsys, tmp_path):
    """And no page."""
    out = tmp_path / "report.html"
    arguments = ["report", "--url", "http://localhost:1/metrics", "--output", str(out)]
    assert main(arguments) == 2
    assert "no metrics at http://localhost:1/metrics" in capsys.readouterr().err
    assert not out.exists()
