"""`ge-backend top` against readings made up."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
import rich.live
from rich.console import Console

from builders.recordings import look, text_reading
from ge_tools import top
from ge_tools.main import main
from ge_tools.watch.models import model_numbers
from ge_tools.watch.readings import DeviceLine, Reading
from ge_tools.watch.text import text_lines

(IDLE,) = model_numbers(look(1.0, ge_buckets=3), look(2.0, ge_buckets=3))
MODEL = replace(
    IDLE,
    model="encoder",
    requests_per_s=123.4,
    rows_per_batch=6.0,
    padding=1.25,
    queue_ms=0.5,
    run_ms=12.25,
    plan_error=0.066,
    buckets=[("8x64", 5), ("4x32", 2)],
)
DEVICE = DeviceLine(
    device="npu:0",
    up=False,
    outstanding_ms=3.0,
    busy=0.75,
    pool_bytes=2**30,
    used_bytes=2**29,
    peak_bytes=2**30,
)


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


def test_models_and_devices_have_a_line_each():
    """With dashes where nothing happened, and a loud word where a device is lost.

    Devices are first: a terminal shows no more than its height, and there may be many models.
    """
    lines = top.screen([MODEL, IDLE], [], [DEVICE]).splitlines()
    assert lines[4].split() == [
        "encoder",
        "123.4",
        "0.0",
        "6.0",
        "1.25x",
        "0.50",
        "12.25",
        "7%",
        "8x64",
        "4x32",
    ]
    assert lines[5].split() == ["m", "0.0", "0.0", "-", "-", "-", "-", "-", "-"]
    assert lines[1].split() == [
        "npu:0",
        "LOST",
        "3.0",
        "0.75",
        "1",
        "GiB",
        "512",
        "MiB",
        "1",
        "GiB",
    ]


def test_nothing_served_is_said():
    """Not an empty screen."""
    assert "nothing" in top.screen([], [], []) or "no model" in top.screen([], [], [])


def test_text_has_a_table_of_its_own():
    """Tokens, first and next tokens, steps, the cache and who had to make room."""
    texts = text_lines(text_reading(10.0, 0), text_reading(12.0, 1))
    lines = top.screen([IDLE], texts, [DEVICE]).splitlines()
    assert lines[6].split()[:3] == ["text", "tokens/s", "prompt/s"]
    assert lines[7].split() == [
        *("writer", "400.0", "100.0", "100/198", "15/50", "20.0", "8", "3", "25%", "7")
    ]
    assert "cache" not in top.screen([IDLE], [], [DEVICE])
    idle = text_lines(text_reading(10.0, 0), text_reading(12.0, 0))
    assert top.screen([IDLE], idle, [DEVICE]).splitlines()[7].split()[3:6] == ["-", "-", "-"]
