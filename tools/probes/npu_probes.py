"""What is asked of an NPU: one function per question, whose first line is the question.

They speak to ACL as directly as possible, so that codes and texts are its own. `Bench` gives them
models, which the machine's own `atc` makes. A question that cannot be asked here raises `Skipped`.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from ge_backend.device.base import GraphSource
from ge_backend.engines import acl as our_calls
from ge_backend.engines.atc.cann import find_cann
from ge_backend.engines.kinds.npu import NpuDevice
from ge_backend.errors import GeError
from ge_backend.model.files.om_weights import weights_digest

from . import npu_models
from .npu_models import WIDTH, Skipped
from .npu_ranges import nowhere, range_run
from .npu_served import health, images, pool, served

__all__ = ["PROBES", "Bench"]

ROWS = 8
MANY_ROWS = 1 << 16  # for which no run finds memory in what is left of the device's
PROGRAMS = 300  # started while copies run
RELOADS = 10
RUNS = 20
LEFT_BYTES = 64 << 10  # of the device's memory, when a model is loaded into what is left
BLOCK_BYTES = 256 << 20
COMPILE_S = 120.0
TORCH_S = 120.0
OTHER_CHIPS = ("Ascend310P3", "Ascend910B3")
HBM, DDR = 1, 0

Probe = Callable[["Bench"], str]


class Bench:
    """ACL, a folder, and models for it, until `close`.

    ACL is begun once: older versions of CANN do not allow a process more.

    Args:
        folder: for files.
        index: which NPU.
    """

    def __init__(self, folder: Path, index: int) -> None:
        self.folder = folder
        self.index = index
        self._begun = False
        try:
            self.acl = importlib.import_module("acl")
        except ImportError as error:
            raise Skipped(f"no CANN: {error}") from error

    def close(self) -> None:
        """End ACL, if it was begun here."""
        if self._begun:
            self.acl.finalize()

    @property
    def chip(self) -> str:
        """The chip's name."""
        self._begin()
        return str(self.acl.get_soc_name())

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Use the device in this thread, by ACL's own calls."""
        self._begin()
        self.acl.rt.set_device(self.index)
        try:
            yield
        finally:
            self.acl.rt.reset_device(self.index)

    @contextmanager
    def device(self) -> Iterator[NpuDevice]:
        """Use it as the backend does."""
        self._begin()
        device = NpuDevice(self.acl, self.index)
        try:
            yield device
        finally:
            device.close()

    def compiled(
        self, name: str, *arguments: str, model: bytes | None = None, soc: str = ""
    ) -> Path:
        """Return an `.om` that `atc` makes of a model; the same for the same name.

        Raises:
            Skipped: there is no `atc`, or it refuses; with its own words.
        """
        if made := self._made(name):
            return made
        file = self.folder / f"{name}.onnx"
        file.write_bytes(npu_models.matrix_product() if model is None else model)
        line = [
            f"--model={file}",
            "--framework=5",
            f"--soc_version={soc or self.chip}",
            f"--output={self.folder / name}",
            *arguments,
        ]
        output = self.folder / f"{name}.txt"
        try:
            with (
                output.open("wb") as log,
                subprocess.Popen(  # with a pipe and a group, as `Cann.command` wants it
                    find_cann(os.environ).command(line),
                    cwd=self.folder,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                ) as process,
            ):
                status = process.wait(timeout=COMPILE_S)
        except (GeError, OSError, subprocess.TimeoutExpired) as error:
            raise Skipped(f"no model: {error}") from error
        made = self._made(name)
        if status or made is None:
            lines = output.read_text(errors="replace").splitlines()
            said = [text for text in lines if re.match(r"E[0-9A-Z]\d{4}", text)]
            raise Skipped(f"atc {' '.join(arguments)} failed: {' '.join(said) or status}")
        return made

    def fixed(
        self, name: str = "fixed", rows: int = ROWS, *, mode: str = "fp16", soc: str = ""
    ) -> Path:
        """Return the matrix product for so many rows."""
        shape = f"--input_shape=x:{rows},{WIDTH}"
        how = ("--input_format=ND", f"--precision_mode_v2={mode}")
        return self.compiled(name, shape, *how, soc=soc)

    def ranges(self, rows: int) -> Path:
        """Return the matrix product for at most so many rows."""
        return self.compiled("range", f"--input_shape=x:1~{rows},{WIDTH}", "--input_format=ND")

    @contextmanager
    def filled(self) -> Iterator[str]:
        """Take all of the device's memory but a little; give how ACL refuses more."""
        held, size, refused = [], BLOCK_BYTES, ""
        while size >= LEFT_BYTES:
            address, code = self.acl.rt.malloc(size, 0)
            if code:
                refused = self.outcome(code)
                size //= 2
            else:
                held.append(address)
        try:
            yield refused
        finally:
            for address in held:
                self.acl.rt.free(address)

    def _made(self, name: str) -> Path | None:
        """Return what `atc` wrote; a model with ranges is called name_linux_x86_64.om."""
        return next(self.folder.glob(f"{name}*.om"), None)

    def _begin(self) -> None:
        if not self._begun:
            self.acl.init()
            self._begun = True

    def outcome(self, code: int) -> str:
        """Return a code with what ACL says about it."""
        text = " ".join(str(self.acl.get_recent_err_msg() or "no text").split())[:200]
        return f"{code} ({text})" if code else "0"


def names(bench: Bench) -> str:
    """Which calls of ours does this pyACL lack?"""
    folder = Path(str(our_calls.__file__)).parent
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py")))
    used = {f"rt.{name}" for name in re.findall(r"self\._rt\.(\w+)\(", text)}
    used |= {f"mdl.{name}" for name in re.findall(r"self\._mdl\.(\w+)\(", text)}
    used |= set(re.findall(r"self\._acl\.(\w+)\(", text))
    missing = [name for name in sorted(used) if not _has(bench.acl, name)]
    version = bench.acl.get_version() if _has(bench.acl, "get_version") else "?"
    return f"{bench.chip}, ACL {version}: " + (", ".join(missing) or f"none of {len(used)}")


def _has(module: Any, dotted: str) -> bool:
    for part in dotted.split("."):
        if not hasattr(module, part):
            return False
        module = getattr(module, part)
    return True


def memory(bench: Bench) -> str:
    """Is the memory told as HBM or as DDR?"""
    with bench.opened():
        found = {kind: bench.acl.rt.get_mem_info(at) for kind, at in (("HBM", HBM), ("DDR", DDR))}
    return ", ".join(f"{kind} free, total, code {answer}" for kind, answer in found.items())


def ranges(bench: Bench) -> str:
    """May the size of a model with ranges be asked, and may it be given memory?"""
    path = str(bench.ranges(ROWS))
    with bench.opened():
        *sizes, code = bench.acl.mdl.query_size(path)
        asked = f"query_size {sizes} {bench.outcome(code)}"
        loaded = []
        for call, given in (("load_from_file", ()), ("load_from_file_with_mem", (0, 0, 0, 0))):
            model, code = getattr(bench.acl.mdl, call)(path, *given)
            loaded.append(f"{call} {bench.outcome(code)}")
            if not code:
                bench.acl.mdl.unload(model)
    return "; ".join([asked, *loaded])


def no_memory(bench: Bench) -> str:
    """Which code is it when a model does not fit?"""
    path = str(bench.fixed())
    with bench.opened(), bench.filled() as refused:
        loads = []
        for _ in range(RUNS):
            model, code = bench.acl.mdl.load_from_file(path)
            if code:
                loads.append(bench.outcome(code))
                break
            held_model = model
            loads.append("0")
            bench.acl.mdl.unload(held_model)
    return f"malloc {refused}; load {loads[-1]} after {len(loads)}"


def no_streams(bench: Bench) -> str:
    """Which code is it when a model is loaded and streams are used up?"""
    path, streams = str(bench.fixed()), []
    with bench.opened():
        while True:
            stream, code = bench.acl.rt.create_stream()
            if code:
                refused = bench.outcome(code)
                break
            streams.append(stream)
        model, code = bench.acl.mdl.load_from_file(path)
        said = bench.outcome(code)
        if not code:
            bench.acl.mdl.unload(model)
        for stream in streams:
            bench.acl.rt.destroy_stream(stream)
    return f"create_stream {refused} after {len(streams)}; load {said}"


def range_no_memory(bench: Bench) -> str:
    """Which code does a run with ranges give without memory, and is the thread's last error it?"""
    path, shape = bench.ranges(MANY_ROWS), (MANY_ROWS, WIDTH)
    with bench.opened():
        address, _ = bench.acl.rt.malloc(MANY_ROWS * WIDTH * 4, 0)
        with range_run(bench.acl, path, shape, address) as run, bench.filled():
            result = run()
        bench.acl.rt.free(address)
    return result


def range_exception(bench: Bench) -> str:
    """Which code does a run with ranges give after an AI core exception, and the last error?"""
    path = bench.ranges(ROWS)
    with bench.opened():
        address = nowhere(bench.acl, BLOCK_BYTES)
        with range_run(bench.acl, path, (ROWS, WIDTH), address) as run:
            return run()


def other_chip(bench: Bench) -> str:
    """Which code is it when a model is for another chip?"""
    soc = next(name for name in OTHER_CHIPS if name != bench.chip)
    path = str(bench.fixed("other", soc=soc))
    with bench.opened():
        model, code = bench.acl.mdl.load_from_file(path)
        said = bench.outcome(code)
        if not code:
            bench.acl.mdl.unload(model)
    return f"{soc} on {bench.chip}: {said}"


def error_text(bench: Bench) -> str:
    """Is the text that ACL gives the one of the last error?"""
    with bench.opened():
        first = bench.outcome(bench.acl.mdl.load_from_file("/no/such/file.om")[1])
        second = bench.outcome(bench.acl.mdl.unload(12345))
        again = bench.acl.get_recent_err_msg()
    return f"first {first}; second {second}; asked once more: {again}"


def equal_weights(bench: Bench) -> str:
    """Does atc write equal weights for two buckets of one model?"""
    paths = [bench.fixed(f"rows{rows}", rows) for rows in (1, ROWS)]
    first, second = map(weights_digest, paths)
    if first and first == second:
        return "yes"
    return f"no: {' and '.join(digest or 'not found in the file' for digest in (first, second))}"


def reload(bench: Bench) -> str:
    """Does loading a model again disturb a run that reads the same weights?"""
    path = bench.fixed()
    x = np.random.default_rng(2).normal(size=(ROWS, WIDTH)).astype(np.float32)
    with bench.device() as device:
        graph = device.load(GraphSource.of(path))
        (expected,) = graph.run({"x": x}, {}, exclusive=False).values()
        wrong, done = [], threading.Event()

        def work() -> None:
            while not done.is_set():
                (y,) = graph.run({"x": x}, {}, exclusive=False).values()
                wrong.append(not np.array_equal(y, expected))

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(RELOADS):
            device.load(GraphSource.of(path)).close()
        done.set()
        thread.join()
        graph.close()
    return f"{sum(wrong)} of {len(wrong)} runs differed during {RELOADS} loads"


def programs(bench: Bench) -> str:
    """Do programs start while copies are in flight?"""
    path = bench.fixed()
    x = np.ones((ROWS, WIDTH), np.float32)
    with bench.device() as device:
        graph = device.load(GraphSource.of(path))
        done, runs = threading.Event(), [0]

        def work() -> None:
            while not done.is_set():
                graph.run({"x": x}, {}, exclusive=False)
                runs[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        started = time.monotonic()
        failed = sum(
            subprocess.run(["true"], check=False, timeout=20).returncode != 0
            for _ in range(PROGRAMS)
        )
        seconds = time.monotonic() - started
        done.set()
        thread.join()
        graph.close()
    return f"{PROGRAMS} programs beside {runs[0]} runs in {seconds:.1f} s, {failed} failed"


def precision(bench: Bench) -> str:
    """How long does a run take in origin and in fp16, and how far apart are they?"""
    x = np.random.default_rng(3).normal(size=(ROWS, WIDTH)).astype(np.float32)
    found, results = [], []
    for mode in ("origin", "fp16"):
        try:
            path = bench.fixed(f"in_{mode}", mode=mode)
        except Skipped as refused:
            found.append(f"{mode}: {refused}")
            continue
        with bench.device() as device:
            graph = device.load(GraphSource.of(path))
            times = []
            for _ in range(RUNS):
                started = time.perf_counter()
                (y,) = graph.run({"x": x}, {}, exclusive=False).values()
                times.append(time.perf_counter() - started)
            graph.close()
        results.append(y.astype(np.float32))
        found.append(f"{mode} {1e3 * sorted(times)[RUNS // 2]:.2f} ms")
    both = (
        f"; largest difference {np.abs(results[0] - results[1]).max():.1e}" if results[1:] else ""
    )
    return ", ".join(found) + both


def files(bench: Bench) -> str:
    """Where does CANN write while a model is compiled and run, and who are we?"""
    home = Path.home()
    places = [home / "ascend", home / "atc_data", bench.folder / "kernel_meta", home / "var"]
    started = time.time() - 1
    path = bench.fixed()
    with bench.device() as device:
        device.load(GraphSource.of(path)).close()
    wrote = [
        str(place)
        for place in places
        if place.exists()
        and any(f.stat().st_mtime >= started for f in (place, *place.rglob("*")) if f.exists())
    ]
    return (
        f"uid {os.getuid()}, groups {os.getgroups()}; wrote in {', '.join(wrote) or 'none of them'}"
    )


def own_context(bench: Bench) -> str:
    """Does torch_npu fail under a context of another's making, and not under the primary one?"""
    return _torch(
        bench,
        "primary, _ = acl.rt.get_context()\n"
        "other, _ = acl.rt.create_context(INDEX)\n"
        "for name, context in (('other', other), ('primary', primary)):\n"
        "    acl.rt.set_context(context)\n"
        "    try:\n"
        "        x.copy_(torch.ones(8), non_blocking=True); torch.npu.synchronize()\n"
        "        print(name, 'works', end='; ')\n"
        "    except Exception as error:\n"
        "        print(name, str(error).splitlines()[0][:200], end='; ')\n"
        "acl.rt.set_context(primary)\n",
    )


def early_finalize(bench: Bench) -> str:
    """How does a process with torch_npu end after acl.finalize?"""
    return _torch(bench, "print('finalize', acl.finalize(), flush=True)\n")


def after_error(bench: Bench) -> str:
    """What do torch's errors say after a bad index, without its task queue and with it?"""
    script = (
        "import re\n"
        "bad = torch.full((1,), 1 << 40, device=x.device)\n"
        "for work in (lambda: x.index_select(0, bad), *[lambda: x + 1] * 3):\n"
        "    try: print(work().cpu().tolist(), end='; ')\n"
        "    except Exception as error:\n"
        "        codes = re.findall(r'error code\\D{,5}\\d+', str(error))\n"
        "        print(str(error).splitlines()[0][:200], codes, end='; ')\n"
    )
    return " / ".join(_torch(bench, script, TASK_QUEUE_ENABLE=mode) for mode in ("0", "1"))


def captures(bench: Bench) -> str:
    """How many graphs are captured while two threads upload, and how many streams do they take?"""
    return _torch(
        bench,
        "import threading\n"
        "done, uploads, graphs, failed = threading.Event(), [0], [], ''\n"
        "host = torch.ones(1 << 16, pin_memory=True)\n"
        "def upload():\n"
        "    torch.npu.set_device(INDEX)\n"
        "    stream, there = torch.npu.Stream(), torch.empty(1 << 16, device=x.device)\n"
        "    while not done.is_set():\n"
        "        with torch.npu.stream(stream): there.copy_(host, non_blocking=True)\n"
        "        stream.synchronize(); uploads[0] += 1\n"
        "threads = [threading.Thread(target=upload) for _ in range(2)]\n"
        "[thread.start() for thread in threads]\n"
        "before = acl.rt.get_stream_available_num()\n"
        "pool = torch.npu.graph_pool_handle()\n"
        "try:\n"
        "    for _ in range(64):\n"
        "        graph = torch.npu.NPUGraph()\n"
        "        with torch.npu.graph(graph, pool=pool, capture_error_mode='thread_local'):\n"
        "            y = torch.relu(x * 2)\n"
        "        graphs.append(graph)\n"
        "except Exception as error: failed = str(error).splitlines()[0][:200]\n"
        "done.set(); [thread.join() for thread in threads]\n"
        "print(len(graphs), 'captured beside', uploads[0], 'uploads; streams left', before,\n"
        "      acl.rt.get_stream_available_num(), failed)\n",
    )


def torch_checks(bench: Bench) -> str:
    """Do the checks of the torch engine pass (uint8 views, TorchScript, captures)?"""
    _torch_npu()
    engine = importlib.import_module("tools.probes.npu_torch")
    return str(engine.checked(bench.index, bench.folder))


def generation(bench: Bench) -> str:
    """Are steps of a text generator captured, and do they agree with those that are not?"""
    _torch_npu()
    steps = importlib.import_module("tools.probes.graph_steps")
    with redirect_stdout(io.StringIO()) as said:
        steps.main(["--device", f"npu:{bench.index}", "--rounds", "5"])
    return said.getvalue()


def _torch_npu() -> None:
    try:
        importlib.import_module("torch_npu")
    except (ImportError, RuntimeError, OSError) as error:
        raise Skipped(f"no torch_npu: {str(error).splitlines()[0]}") from error


def _torch(bench: Bench, script: str, **environment: str) -> str:
    """Run a script after one operator of torch_npu; return what it prints, and how it ends."""
    _torch_npu()
    start = (
        "import torch, torch_npu, acl\n"
        f"INDEX = {bench.index}\n"
        "torch.npu.set_device(INDEX)\n"
        "x = torch.ones(8, device=f'npu:{INDEX}'); torch.npu.synchronize()\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", start + script],
            env={**os.environ, **environment},
            capture_output=True,
            timeout=TORCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:  # its text would be the whole script
        return f"{_text(late.stdout)} no end after {TORCH_S:.0f} s {_last(late.stderr)}"
    return f"{_text(done.stdout)} exit status {done.returncode} {_last(done.stderr)}"


def _text(said: bytes | None) -> str:
    return (said or b"").decode(errors="replace").strip()


def _last(said: bytes | None) -> str:
    return " / ".join(_text(said).splitlines()[-2:])


PROBES: Mapping[str, Probe] = {
    probe.__name__: probe
    for probe in (
        names,
        served,
        pool,
        images,
        health,
        memory,
        ranges,
        error_text,
        other_chip,
        equal_weights,
        precision,
        reload,
        programs,
        files,
        no_memory,
        no_streams,
        range_no_memory,
        range_exception,
        own_context,
        early_finalize,
        after_error,
        captures,
        torch_checks,
        generation,
    )
}
