"""The one command for a borrowed GPU, on a machine that has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tools.probes import gpu
from tools.probes.gpu import main

from ge_backend.device.base import MemoryInfo
from ge_backend.errors import DeviceUnavailable

SCRIPT = Path(gpu.__file__).with_suffix(".sh")


class Device:
    name = "cpu"

    def memory(self):
        return MemoryInfo(free_bytes=1 << 30, total_bytes=2 << 30)

    def close(self):
        pass


@pytest.fixture
def steps(monkeypatch):
    """Note the steps instead of taking them; those in `failing` fail."""
    taken, failing = [], set()

    def step(what, arguments, timeout_s, **_):
        taken.append(what)
        return what not in failing

    def check(device, checks):
        taken.append("checks")
        return int("checks" in failing)

    monkeypatch.setattr(gpu.CudaDevice, "open", lambda index: Device())
    monkeypatch.setattr(gpu, "run_checks", check)
    monkeypatch.setattr(gpu, "_python", step)
    found = gpu.importlib.util.find_spec
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: found("sys") or name)
    return taken, failing


ALL = [
    "checks",
    "contract tests",
    "bench_device origin",
    "bench_encoder origin",
    "bench_device bf16",
    "bench_encoder bf16",
    "graph_steps FP32",
    "graph_steps BF16",
    "bench_serving bert-small",
    "bench_serving bert-base",
]


def test_everything_is_done_in_order(steps, capsys):
    """Right answers first, figures afterwards; the machine is described above all."""
    assert main([]) == 0
    assert steps[0] == ALL
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("device cpu, memory 2 GiB, torch ")
    assert printed[-1] == "all is well"


def test_whatever_is_done_is_done_on_the_gpu(steps, monkeypatch):
    """A command that names none would measure the CPU, and say so nowhere."""
    commands = []
    monkeypatch.setattr(gpu, "_python", lambda _, given, *__, **___: commands.append(given) or True)
    assert main(["--index", "1"]) == 0
    tests, *benchmarks = commands
    assert tests[tests.index("-k") + 1] == "cuda"
    assert len(benchmarks) == len(ALL) - 2
    for command in benchmarks:
        assert "--device cuda:1" in " ".join(command)


@pytest.mark.parametrize("failing", ALL)
def test_what_fails_does_not_stop_the_rest(steps, failing, capsys):
    """The exit code and the last line tell."""
    taken, failures = steps
    failures.add(failing)
    assert main([]) == 1
    assert taken == ALL
    assert capsys.readouterr().out.splitlines()[-1] == "1 failed"


@pytest.mark.parametrize(
    ("part", "taken"),
    [
        ("works", ALL[:2]),
        ("figures", ALL[2:6]),
        ("generation", ALL[6:8]),
        ("serving", ALL[8:]),
    ],
)
def test_each_part_fits_into_ten_minutes(steps, part, taken):
    """They are taken one by one where a command may not take longer."""
    assert main(["--part", part]) == 0
    assert steps[0] == taken
    assert gpu.CONTRACT_TIMEOUT_S + 60 < 600 > 4 * gpu.BENCH_TIMEOUT_S
    assert 2 * gpu.SERVING_TIMEOUT_S < 600


def test_onnx_on_cuda_is_not_claimed(steps, monkeypatch, capsys):
    """Whether it could be run at all is said."""
    pytest.importorskip("onnxruntime")
    main(["--part", "works"])
    assert "SKIP  ONNX on CUDA: this onnxruntime has only " in capsys.readouterr().out


def test_without_pytest_the_checks_have_to_do(steps, monkeypatch, capsys):
    """A bare machine need not have it."""
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    assert main(["--part", "works"]) == 0
    assert steps[0] == ["checks"]
    assert "SKIP  contract tests: pytest is not installed" in capsys.readouterr().out


def test_without_a_server_nothing_is_compared_on_it(steps, monkeypatch, capsys):
    """Said with what is missing."""
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: name != "pytriton" or None)
    assert main(["--part", "serving"]) == 0
    assert not steps[0]
    assert "SKIP  bench_serving bert-base: pytriton is not installed" in capsys.readouterr().out


def test_without_a_gpu_it_fails_with_the_reason(monkeypatch, capsys):
    """It is one line, and nothing else is tried."""

    def refuse(index):
        raise DeviceUnavailable(f"device 'cuda:{index}': torch finds no GPU")

    monkeypatch.setattr(gpu.CudaDevice, "open", refuse)
    assert main([]) == 1
    assert capsys.readouterr().out == "FAIL  device 'cuda:0': torch finds no GPU\n"


@pytest.mark.parametrize(
    ("code", "ended"), [("print('hello')", True), ("raise SystemExit(3)", False)]
)
def test_a_step_is_a_process_of_its_own(code, ended, capfd):
    """What it prints is seen, and its exit code counts."""
    assert gpu._python("a step", ("-c", code), 60.0) is ended
    printed = capfd.readouterr().out
    assert ("PASS  a step" in printed) is ended
    assert ("hello" in printed) is ended


def test_a_step_that_takes_too_long_fails(capfd):
    """A borrowed machine is not waited for."""
    assert not gpu._python("a step", ("-c", "import time; time.sleep(600)"), 0.5)
    assert "FAIL  a step: took more than 0 s" in capfd.readouterr().out


def test_the_contract_tests_run_without_the_projects_settings():
    """Those name plugins that a bare machine need not have; tests are found all the same."""
    command = [sys.executable, "-m", "pytest", *gpu.PYTEST, "--collect-only", "-p", "no:timeout"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_writes_into_the_given_place[cuda-graphs-torch]" in done.stdout


def test_the_script_says_why_it_cannot(tmp_path):
    """It works from any folder, with the interpreter that it is given."""
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        ["bash", str(SCRIPT), "--part", "works"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL  device 'cuda:0'")
