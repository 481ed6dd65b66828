"""What a person sees."""

from dataclasses import replace

from builders.recordings import look, text_reading
from ge_backend.cli.watch.models import model_numbers
from ge_backend.cli.watch.readings import DeviceLine
from ge_backend.cli.watch.screen import screen
from ge_backend.cli.watch.text import text_lines

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


def test_models_and_devices_have_a_line_each():
    """With dashes where nothing happened, and a loud word where a device is lost.

    Devices are first: a terminal shows no more than its height, and there may be many models.
    """
    lines = screen([MODEL, IDLE], [], [DEVICE]).splitlines()
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
    assert "nothing" in screen([], [], []) or "no model" in screen([], [], [])


def test_text_has_a_table_of_its_own():
    """Tokens, first and next tokens, steps, the cache and who had to make room."""
    texts = text_lines(text_reading(10.0, 0), text_reading(12.0, 1))
    lines = screen([IDLE], texts, [DEVICE]).splitlines()
    assert lines[6].split()[:3] == ["text", "tokens/s", "prompt/s"]
    assert lines[7].split() == [
        *("writer", "400.0", "100.0", "100/198", "15/50", "20.0", "8", "3", "25%", "7")
    ]
    assert "cache" not in screen([IDLE], [], [DEVICE])
    idle = text_lines(text_reading(10.0, 0), text_reading(12.0, 0))
    assert screen([IDLE], idle, [DEVICE]).splitlines()[7].split()[3:6] == ["-", "-", "-"]
