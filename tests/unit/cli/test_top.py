"""`ge-backend top` against readings made up."""

import io
from types import SimpleNamespace

import pytest
import rich.live
from rich.console import Console

from ge_backend.cli import top
from ge_backend.cli.main import main
from ge_backend.cli.watch.readings import Reading


@pytest.fixture
def readings(monkeypatch):
    """Ten more requests at every look, a second apart."""
    state = {"looks": 0}

    def scrape(url):
        state["url"] = url
        state["looks"] += 1
        count = 10.0 * state["looks"]
        series = {("ge_requests_total", (("model", "m"),)): count}
        return Reading(at_s=float(state["looks"]), values=series)

    monkeypatch.setattr(top, "scrape", scrape)
    return state


def test_it_looks_so_many_times(readings, capsys):
    """Without a terminal each screen is printed below the last."""
    assert main(["top", "--times", "2", "--every", "0", "--url", "http://here/metrics"]) == 0
    assert capsys.readouterr().out.count("10.0") == 2
    assert readings == {"looks": 3, "url": "http://here/metrics"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--times", value) for value in ("-1", "99999999999999999999", "often")),
        *(("--every", value) for value in ("-1", "nan", "inf", "1e30", "soon")),
    ],
)
def test_numbers_that_make_no_sense_are_refused(readings, capsys, option, value):
    """Before anything is looked at."""
    with pytest.raises(SystemExit):
        main(["top", "--times", "1", option, value])
    assert option in capsys.readouterr().err
    assert readings == {"looks": 0}


def test_an_interrupt_ends_it_quietly(monkeypatch, readings):
    """^C is the way out."""

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=interrupted))
    assert main(["top"]) == 0


def test_on_a_terminal_each_screen_takes_the_lasts_place(monkeypatch, readings, capsys):
    """Drawn by rich."""
    monkeypatch.setattr(top.sys.stdout, "isatty", lambda: True)
    assert main(["top", "--times", "1", "--every", "0"]) == 0
    assert "req/s" in capsys.readouterr().out


def test_a_line_that_is_too_long_is_cut(monkeypatch):
    """A second row for it would push others out of the terminal."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=20, height=5)
    monkeypatch.setattr(rich.live, "get_console", lambda: console)
    top._show_live(iter(["model  one two forty nine", "x" * 19]))
    assert "model  one two fort…" in shown.getvalue()
    assert "nine" not in shown.getvalue()


def test_no_server_is_one_line(capsys):
    """And the code of a usage error."""
    assert main(["top", "--url", "http://localhost:1/metrics"]) == 2
    assert "no metrics at http://localhost:1/metrics" in capsys.readouterr().err
