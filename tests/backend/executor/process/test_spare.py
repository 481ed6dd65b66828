"""When a spare executor is kept, and what happens where there is none or none that answers."""

import os
import socket
import subprocess
import sys

import pytest

from ge_backend.executor.process import spare
from ge_backend.executor.process.spare import dismiss, hand_over, is_wanted, prepare, spare_path

GIB = 1 << 30
# Listens at the path it is given, and never answers.
DEAF = """
import socket, sys, time
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.bind(sys.argv[1])
sock.listen()
print("listening", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("setting", "cores", "gib", "wanted"),
    [
        ("auto", 4, 16, True),
        ("auto", 3, 64, False),
        ("auto", 64, 15, False),
        ("on", 1, 1, True),
        ("off", 64, 512, False),
    ],
)
def test_a_spare_is_kept_where_there_is_room(setting, cores, gib, wanted):
    """By the rule of `auto`, or as the setting says."""
    assert is_wanted(setting, cores, gib * GIB) is wanted


def test_without_a_spare_nothing_happens(tmp_path):
    """Whoever asks goes on without it; a socket that nobody listens at is none."""
    executor = tmp_path / "cpu-1.sock"
    for _ in range(2):
        assert not prepare(executor, ["numpy"])
        assert not hand_over(executor, ["--device=cpu"], ready=1, lock=1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            spare_path(executor).unlink(missing_ok=True)
            dead.bind(str(spare_path(executor)))
    dismiss(executor)
    assert not spare_path(executor).exists()


def test_one_that_does_not_answer_is_ended(tmp_path, monkeypatch):
    """Else it could become a second executor later, beside the one that is started instead."""
    monkeypatch.setattr(spare, "ACCEPTS_WITHIN_S", 0.2)
    executor = tmp_path / "cpu-1.sock"
    command = [sys.executable, "-c", DEAF, str(spare_path(executor))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"listening\n"
        descriptors = os.pipe()
        assert not hand_over(executor, ["--device=cpu"], *descriptors)
        assert process.wait(10) == -9
    for descriptor in descriptors:
        os.close(descriptor)
    assert not spare_path(executor).exists()
