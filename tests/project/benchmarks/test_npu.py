"""The report about an NPU: each question in a process of its own, whatever becomes of that."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from tools.probes import npu
from tools.probes.npu import main
from tools.probes.npu_probes import PROBES

from acl_simulator.site import SimulatedPython
from builders.cann import fake_cann

SCRIPT = Path(npu.__file__).with_suffix(".sh")
ROOT = SCRIPT.parent.parent


def ended(monkeypatch, script, wait=subprocess.Popen.wait):
    """Let every probe be this, in a shell."""

    class Started(subprocess.Popen):
        def __init__(self, command, **given):
            super().__init__(["sh", "-c", script], **given)

        def wait(self, limit=None):
            return wait(self, limit)

    names = vars(subprocess) | {"Popen": Started}
    monkeypatch.setattr(npu, "subprocess", types.SimpleNamespace(**names))


def prints(text):
    return f"cat <<'END'\n{text}END\n"


def said(kind, text):
    return "CANN prints, too\n" + json.dumps({"kind": kind, "text": text}) + "\n"


def test_answers_become_a_table(monkeypatch, capsys, tmp_path):
    """Markdown, which an issue takes; a bar in an answer does not break it."""
    ended(monkeypatch, prints(said("answer", "5 | 6\nbytes")))
    out = tmp_path / "report.md"
    assert main(["--only", "memory", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## NPU report: Python 3.")
    assert "| Is the memory told as HBM or as DDR? (`memory`) | 5 \\| 6 bytes |" in printed
    assert out.read_text() == printed


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo one >&2; echo Fatal >&2; kill -SEGV $$", "**ended with status -11**: one / Fatal"),
        ("exit 0", "**ended without an answer**: "),
        (prints(said("answer", "fine")) + "exit 3", "fine **and then ended with status 3**"),
        (prints(said("answer", "fine")) + "echo '[]'; echo '{\"log\": 1}'", "`reload`) | fine |"),
    ],
    ids=["crash", "nothing", "at exit", "more is printed"],
)
def test_a_process_that_breaks_is_an_answer(monkeypatch, capsys, script, text):
    """That is why each has its own; what CANN prints behind an answer does not hide it."""
    ended(monkeypatch, script)
    main(["--only", "reload"])
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("", "**hung: no end after 5 s**"),
        (said("answer", "so"), "so **and then hung: no end after"),
    ],
)
def test_one_that_hangs_is_ended_with_what_it_has_started(
    monkeypatch, capsys, tmp_path, before, text
):
    """What it has answered before counts."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    original, opened = subprocess.Popen.wait, []

    def wait(process, limit):
        if opened:
            return original(process, limit)
        opened.append(fifo.open())
        assert opened[0].readline() == "up\n"
        raise subprocess.TimeoutExpired("probe", limit)

    script = f"{prints(before)}sleep 1000 >{fifo} & echo up >{fifo}; sleep 1000 >{fifo}"
    ended(monkeypatch, script, wait=wait)
    main(["--only", "reload", "--limit", "5"])
    with opened[0] as reading:
        assert reading.read() == ""
    assert text in capsys.readouterr().out


def test_without_an_npu_it_fails(monkeypatch, capsys):
    """The reasons stand in the table."""
    ended(monkeypatch, prints(said("skipped", "not asked: no CANN")))
    assert main([]) == 1
    printed = capsys.readouterr().out
    assert printed.count("not asked: no CANN") == len(PROBES)


def test_what_a_probe_raises_is_its_answer(monkeypatch, capsys):
    """With its type; and what cannot be asked says so."""
    monkeypatch.setitem(sys.modules, "acl", types.ModuleType("acl"))
    assert main(["--probe", "memory"]) == 0
    assert json.loads(capsys.readouterr().out)["text"].startswith("AttributeError: ")
    monkeypatch.setitem(sys.modules, "acl", None)
    main(["--probe", "memory"])
    assert json.loads(capsys.readouterr().out)["kind"] == "skipped"


def test_the_report_says_which_cann_and_driver_it_is_of(monkeypatch, capsys, tmp_path):
    """Answers differ between versions."""
    ended(monkeypatch, prints(said("answer", "5")))
    monkeypatch.setenv("PATH", str(fake_cann(tmp_path / "cann") / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(npu, "DRIVER", tmp_path / "version.info")
    npu.DRIVER.write_text("Version=25.5.1\nascendhal_version=7.35\n")
    main(["--only", "memory"])
    title = capsys.readouterr().out.splitlines()[0]
    assert "version=8.5.0" in title
    assert title.endswith("driver Version=25.5.1 ascendhal_version=7.35")


@pytest.mark.process
def test_the_script_says_what_it_needs(tmp_path):
    """A report without models would say little, and be sent."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *onnx*) exit 1;; *) exec {sys.executable} "$@";; esac\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        [str(SCRIPT)],
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"-m pip install numpy onnx" in done.stderr


@pytest.mark.process
def test_the_script_on_a_simulated_npu(tmp_path):
    """From the shell to the table, for probes that need no compiler."""
    python = SimulatedPython(tmp_path)
    only = [part for name in ("names", "memory", "error_text") for part in ("--only", name)]
    done = subprocess.run(
        [str(SCRIPT), *only],
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python.path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Ascend910B3, ACL (1, 14, 0, 0): none of" in done.stdout
    assert "first 145002" in done.stdout
