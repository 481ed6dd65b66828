"""All that is to be done on a borrowed GPU, in a few minutes: checks, contract tests, figures.

`python -m tools.probes.gpu` needs torch with CUDA and numpy, and no network; with pytest the
contract tests run too, and with a Triton server, `tritonclient` and transformers the backend is
compared with plain Python models on it. It comes in parts, each of which takes less than ten
minutes. Put what it prints into docs/devices.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from ge_backend.engines.kinds.cuda import CudaDevice
from ge_backend.errors import GeError

from .device_checks import CHECKS, Check, Subject, prepare

__all__ = ["main", "run_checks"]

ROOT = Path(__file__).resolve().parents[2]
CONTRACT_TIMEOUT_S = 240.0
BENCH_TIMEOUT_S = 140.0
SERVING_TIMEOUT_S = 250.0
PARTS = ("works", "figures", "generation", "serving")
# What is compared on the server: large enough that a GPU has something to do.
ENCODERS = ("bert-small", "bert-base")
SERVING = (
    *("--precision", "bf16", "--mix", "lognormal", "--rounds", "3", "--window", "1"),
    *("--minutes", "3"),
    *("--concurrency", "1", "8", "32", "128"),
)
# Without the project's own settings: those name plugins that need not be installed here.
PYTEST = (
    *("-c", "/dev/null", "--rootdir", str(ROOT), "-o", f"pythonpath={ROOT / 'tests'}"),
    *("--import-mode=importlib", "-p", "no:cacheprovider", "-q", "-rs", "-k", "cuda"),
    str(ROOT / "tests" / "contract"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything and print it; return 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", type=int, default=0, help="which GPU")
    parser.add_argument(
        "--part", choices=PARTS, action="append", help="only this, and others that are named"
    )
    options = parser.parse_args(arguments)
    try:
        device = CudaDevice.open(options.index)
    except GeError as error:
        print(f"FAIL  {error}")
        return 1
    parts = options.part or PARTS
    print(_machine(device))
    failed = run_checks(device, CHECKS) if "works" in parts else 0
    device.close()
    if "works" in parts:
        failed += not _contract()
        print(_onnx())
    for precision in ("origin", "bf16") if "figures" in parts else ():
        failed += not _bench("bench_device", f"cuda:{options.index}", precision)
        failed += not _bench("bench_encoder", f"cuda:{options.index}", precision)
    for precision in ("FP32", "BF16") if "generation" in parts else ():
        failed += not _bench("graph_steps", f"cuda:{options.index}", precision)
    for encoder in ENCODERS if "serving" in parts else ():
        failed += not _serving(f"cuda:{options.index}", encoder)
    print("all is well" if not failed else f"{failed} failed")
    return int(failed > 0)


def run_checks(
    device: CudaDevice, checks: Sequence[Check], say: Callable[[str], None] = print
) -> int:
    """Run each check, and return how many failed; what one raises does not stop the others."""
    with tempfile.TemporaryDirectory(prefix="ge-checks-") as folder:
        subject = prepare(device, Path(folder))
        return sum(not _passes(subject, check, say) for check in checks)


def _passes(subject: Subject, check: Check, say: Callable[[str], None]) -> bool:
    started = time.perf_counter()
    name = check.__name__.replace("_", " ")
    try:
        check(subject)
    except Exception as error:  # noqa: BLE001 - whatever it is, the next check can tell more
        say(f"FAIL  {name}: {type(error).__name__}: {error}")
        return False
    say(f"PASS  {name} ({time.perf_counter() - started:.1f} s)")
    return True


def _contract() -> bool:
    """Run the contract tests if there is pytest; without it the checks have to do."""
    if importlib.util.find_spec("pytest") is None:
        print("SKIP  contract tests: pytest is not installed")
        return True
    return _python("contract tests", ("-m", "pytest", *PYTEST), CONTRACT_TIMEOUT_S)


def _bench(name: str, device: str, precision: str) -> bool:
    arguments = ("-m", f"tools.probes.{name}", "--device", device, "--precision", precision)
    return _python(f"{name} {precision}", arguments, BENCH_TIMEOUT_S)


def _serving(device: str, encoder: str) -> bool:
    """Compare on the real server, if there is one."""
    needed = ("pytriton", "tritonclient", "transformers", "onnxruntime")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(f"SKIP  bench_serving {encoder}: {', '.join(missing)} is not installed")
        return True
    arguments = ("-m", "benchmarks.bench_serving", "--device", device, "--encoder", encoder)
    # Without gpu.sh's path to the backend, whose `model.py` other models of Python would load.
    return _python(
        f"bench_serving {encoder}",
        (*arguments, *SERVING),
        SERVING_TIMEOUT_S,
        PYTHONPATH=str(ROOT),
    )


def _onnx() -> str:
    """Return whether ONNX models can be run on the GPU here; nothing else of this script does."""
    if importlib.util.find_spec("onnxruntime") is None:
        return "SKIP  ONNX on CUDA: onnxruntime is not installed"
    providers = importlib.import_module("onnxruntime").get_available_providers()
    if "CUDAExecutionProvider" not in providers:
        return f"SKIP  ONNX on CUDA: this onnxruntime has only {', '.join(providers)}"
    return "NOTE  ONNX on CUDA: the provider is there; only the contract tests use it"


def _python(what: str, arguments: Sequence[str], timeout_s: float, **variables: str) -> bool:
    print(f"----  {what}", flush=True)
    # Tests that need a GPU must not skip.
    environment = {**os.environ, "GE_REQUIRE": "cuda", **variables}
    try:
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"FAIL  {what}: took more than {timeout_s:.0f} s")
        return False
    print(f"{'FAIL' if done.returncode else 'PASS'}  {what}", flush=True)
    return done.returncode == 0


def _machine(device: CudaDevice) -> str:
    name = torch.cuda.get_device_name(device.name) if device.name.startswith("cuda") else ""
    parts = {
        "device": f"{device.name} {name}".strip(),
        "memory": f"{device.memory().total_bytes / 2**30:.0f} GiB",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    return ", ".join(f"{key} {value}" for key, value in parts.items())


if __name__ == "__main__":
    sys.exit(main())
