"""The report about an NPU: each question in a process of its own, whatever becomes of that."""

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
from benchmarks import npu
from benchmarks.npu import main
from benchmarks.npu_probes import PROBES

from acl_simulator.site import SimulatedPython

SCRIPT = Path(npu.__file__).with_suffix(".sh")
ROOT = SCRIPT.parent.parent


def ended(monkeypatch, *, stdout="", stderr="", status=0, error=None):
    def run(command, **given):
        if error is not None:
            raise error
        return types.SimpleNamespace(stdout=stdout, stderr=stderr, returncode=status)

    monkeypatch.setattr(npu.subprocess, "run", run)


def said(kind, text):
    return "CANN prints, too\n" + json.dumps({"kind": kind, "text": text}) + "\n"


def test_answers_become_a_table(monkeypatch, capsys, tmp_path):
    """Markdown, which an issue takes; a bar in an answer does not break it."""
    ended(monkeypatch, stdout=said("answer", "5 | 6\nbytes"))
    out = tmp_path / "report.md"
    assert main(["--only", "memory", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## NPU report: Python 3.")
    assert "| Is the memory told as HBM or as DDR? (`memory`) | 5 \\| 6 bytes |" in printed
    assert out.read_text() == printed


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ({"status": -11, "stderr": "one\nFatal: fault"}, "**ended with status -11**: one / Fatal"),
        ({"error": subprocess.TimeoutExpired("x", 5)}, "**hung**: no answer after 5 s"),
        (
            {"stdout": said("answer", "fine"), "status": 134},
            "fine **and then ended with status 134**",
        ),
    ],
    ids=["crash", "hang", "at exit"],
)
def test_a_process_that_breaks_is_an_answer(monkeypatch, capsys, ending, text):
    """That is why each has its own."""
    ended(monkeypatch, **ending)
    main(["--only", "reload", "--limit", "5"])
    assert text in capsys.readouterr().out


def test_without_an_npu_it_fails(monkeypatch, capsys):
    """The reasons stand in the table."""
    ended(monkeypatch, stdout=said("skipped", "not asked: no CANN"))
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
