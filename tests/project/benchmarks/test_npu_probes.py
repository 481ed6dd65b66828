"""What is asked of an NPU, asked of the simulator: the logic, not the answers."""

import inspect
import os
import re
import subprocess
import sys
import types

import pytest

pytest.importorskip("onnx")

from tools.probes import npu_probes, npu_served
from tools.probes.npu_models import Skipped
from tools.probes.npu_probes import PROBES, Bench

from builders.npu_questions import simulated

TORCH = {"own_context", "early_finalize", "after_error", "captures", "torch_checks", "generation"}
WITHOUT_TORCH = [name for name in PROBES if name not in TORCH]


@pytest.fixture
def sim(monkeypatch, tmp_path):
    """A simulated device, and an `atc` that makes models for it."""
    monkeypatch.setattr(npu_probes, "PROGRAMS", 3)
    monkeypatch.setattr(npu_probes, "RELOADS", 2)
    return simulated(monkeypatch, tmp_path)


EXPECTED = {
    "names": r"Ascend910B3, ACL \(1, 14, 0, 0\): none of \d\d",
    "memory": r"HBM free, total, code \(\d+, \d+, 0\), DDR",
    "error_text": r"first 145002 .*; second 145003 .*; asked once more: None",
    "other_chip": r"Ascend310P3 on Ascend910B3: 545001 \(.*built for Ascend310P3",
    "equal_weights": "^yes$",
    "precision": r"origin \d+\.\d\d ms, fp16 \d+\.\d\d ms; largest difference 0\.0e\+00",
    "reload": r"^0 of \d+ runs differed during 2 loads",
    "programs": r"^3 programs beside \d+ runs in .* 0 failed",
    "files": r"^uid \d+, groups .*wrote in none of them",
    "no_memory": r"malloc 207001 .*; load ",
    "no_streams": r"create_stream 207005 .* after 1984; load 0$",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_probe_answers_and_leaves_nothing(sim, bench, name):
    """On the simulator, which refuses misuse: each answer has what was asked for."""
    answer = PROBES[name](bench)
    assert re.search(EXPECTED[name], answer), answer
    assert sim.allocations() == []
    sim.check()


def test_every_probe_is_expected_somewhere():
    """A new one needs a line above; those of ranges have tests of their own."""
    of_ranges = {"ranges", "range_no_memory", "range_exception"}
    assert set(EXPECTED) | of_ranges | TORCH | set(npu_served.__all__) - {"far"} == set(PROBES)


def test_the_file_of_a_model_with_ranges_is_found(bench):
    """Its name has the system and processor of the host that it is for, as `atc` writes it."""
    made = bench.ranges(8)
    assert re.fullmatch(r"range_linux_\w+\.om", made.name)
    assert made.is_file()


def test_ranges_are_asked_in_each_way(sim, bench, monkeypatch):
    """Whatever ACL says to it."""
    from acl_simulator import Ranges, Sums, write_om

    path = write_om(bench.folder / "range.om", Sums(), Ranges({"x": ((1, 8), 64)}))
    monkeypatch.setattr(Bench, "compiled", lambda *_, **__: path)
    answer = PROBES["ranges"](bench)
    assert answer == "query_size [0, 0] 0; load_from_file 0; load_from_file_with_mem 0"
    sim.fail("mdl.query_size", 145000, message="not for ranges")
    assert "mdl.query_size: not for ranges); load_from_file 0" in PROBES["ranges"](bench)
    sim.check()


@pytest.mark.parametrize(
    ("name", "code", "last"),
    [("range_no_memory", 0, 207001), ("range_exception", 507015, 507015)],
)
def test_runs_with_ranges_fail_as_they_are_made_to(sim, bench, monkeypatch, name, code, last):
    """RuntimeV2's code, CANN's text, and what the thread's last error is."""
    from acl_simulator import Ranges, Sums, write_om

    monkeypatch.setattr(npu_probes, "MANY_ROWS", 1024)
    held = []

    def somewhere(acl, nbytes):  # the simulator takes memory that was given back for a misuse
        held.append(acl.rt.malloc(1 << 16, 0)[0])
        return held[-1]

    monkeypatch.setattr(npu_probes, "nowhere", somewhere)
    path = write_om(bench.folder / "range.om", Sums(), Ranges({"x": ((1, 1024), 64)}))
    monkeypatch.setattr(Bench, "compiled", lambda *_, **__: path)
    if code:
        sim.fail("kernel.*", code)
    original = sim.rt.reset_device

    def reset(index):
        for address in held:
            sim.rt.free(address)
        return original(index)

    monkeypatch.setattr(sim.rt, "reset_device", reset)
    answer = PROBES[name](bench)
    assert answer.startswith("execute 500002 (E500002: ")
    assert answer.endswith(f"; last error {last}")
    sim.check()


def test_weights_that_are_not_found_are_not_equal(bench, monkeypatch):
    """A file of another form would answer for the one that is asked about."""
    monkeypatch.setattr(npu_probes, "weights_digest", lambda path: "")
    found = "no: not found in the file and not found in the file"
    assert PROBES["equal_weights"](bench) == found


def test_what_atc_refuses_is_no_answer(bench, monkeypatch):
    """Its own words say why the question was not asked."""
    monkeypatch.setenv("FAKE_ATC", "fails")
    with pytest.raises(Skipped, match=r"atc .* failed: EZ3003: .*No supported Ops"):
        bench.fixed()


def test_a_compiler_that_hangs_is_ended(bench, monkeypatch, tmp_path):
    """With all that it has started: other questions would share the machine with it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "cann" / "bin" / "atc").write_text(
        f"#!/bin/bash\nsleep 1000 >{fifo} & echo up >{fifo}; sleep 1000 >{fifo}\n"
    )
    original, opened = subprocess.Popen.wait, []

    def wait(process, timeout=None):
        if timeout is None:
            return original(process)
        opened.append(fifo.open())
        assert opened[0].readline() == "up\n"
        raise subprocess.TimeoutExpired("atc", timeout)

    monkeypatch.setattr(npu_probes.subprocess.Popen, "wait", wait)
    with pytest.raises(Skipped, match="timed out"):
        bench.fixed()
    with opened[0] as reading:
        assert reading.read() == ""


def test_without_cann_nothing_can_be_asked(monkeypatch, tmp_path):
    """It says what is missing."""
    monkeypatch.setitem(sys.modules, "acl", None)
    with pytest.raises(Skipped, match="no CANN"):
        Bench(tmp_path, 0)


@pytest.mark.parametrize("name", sorted(TORCH))
def test_without_torch_npu_it_is_not_asked(bench, monkeypatch, name):
    """The reason is the import's."""
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(Skipped, match="no torch_npu"):
        PROBES[name](bench)


def test_every_question_is_one():
    """What stands in the report is the first line of its function."""
    for name, probe in PROBES.items():
        assert inspect.getdoc(probe).endswith("?"), name


def test_scripts_for_torch_are_python(bench, monkeypatch):
    """They run elsewhere, so at least they compile; one is run without a task queue and with it."""
    import ast

    scripts, queues = [], []
    monkeypatch.setattr(npu_probes, "_torch_npu", lambda: None)

    def run(command, **given):
        scripts.append(command[2])
        queues.append(given["env"].get("TASK_QUEUE_ENABLE"))
        return types.SimpleNamespace(stdout=b"said", stderr=b"", returncode=3)

    monkeypatch.setattr(npu_probes.subprocess, "run", run)
    for name in ("own_context", "early_finalize", "captures"):
        assert PROBES[name](bench) == "said exit status 3 "
    queues.clear()
    assert PROBES["after_error"](bench) == "said exit status 3  / said exit status 3 "
    assert queues == ["0", "1"]
    for script in scripts:
        ast.parse(script)
    assert len(scripts) == 5


def test_what_a_script_for_torch_has_said_before_it_hangs_counts(bench, monkeypatch):
    """And not the script itself, which is long."""
    monkeypatch.setattr(npu_probes, "_torch_npu", lambda: None)

    def run(command, **given):
        raise subprocess.TimeoutExpired(command, 120, output=b"primary works;", stderr=b"a\nb\nc")

    monkeypatch.setattr(npu_probes.subprocess, "run", run)
    assert PROBES["own_context"](bench) == "primary works; no end after 120 s b / c"


def test_text_generation_prints_a_table(bench, monkeypatch):
    """That of `tools.probes.graph_steps`, for this NPU."""
    pytest.importorskip("torch")
    from tools.probes import graph_steps

    monkeypatch.setattr(npu_probes, "_torch_npu", lambda: None)
    monkeypatch.setattr(graph_steps, "main", lambda given: print("| rows |", *given))
    assert PROBES["generation"](bench) == "| rows | --device npu:0 --rounds 5\n"
