"""ONNX models compiled for an NPU by `atc`, once: what was compiled before is found again.

An entry of the cache is found by everything that the result depends on: the content of the model
and of its external weights, the command line with the chip and the gears, the content of files that
options name, and CANN's version.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import ge_backend
from ge_backend.engines.atc.cache import CompileCache, Compiled, file_digest
from ge_backend.engines.atc.cann import Cann, find_cann
from ge_backend.engines.atc.options import CompileRequest, arguments, gears_of, precision_note
from ge_backend.errors import DeviceUnavailable, ModelError
from ge_backend.model.files.copying import copy_files
from ge_backend.model.files.model_file import named_files
from ge_backend.model.files.onnx_file import external_data

__all__ = ["compile_onnx"]

log = logging.getLogger(__name__)

# Seconds between two lines in the log.
PROGRESS_S = 10.0
# E10001, EZ3003: a code of CANN's, at the start of what it says about an error.
_CODE = re.compile(r"\bE[0-9A-Z]\d{4}\b")
_TRACEBACK = "TraceBack (most recent call last)"
_LAST_LINES = 10
_LONGEST = 2000
# 128 + SIGKILL, as shells report it.
_KILLED = 137

Quiet = Callable[[], AbstractContextManager[None]]


def compile_onnx(
    request: CompileRequest, cache: CompileCache, quiet: Quiet = contextlib.nullcontext
) -> Compiled:
    """Return the cache's `.om` of a model with all its buckets; compile it if it is not there.

    It takes minutes the first time, and says so in the log every ten seconds. `quiet` is held for
    the moment in which the compiler is started, which is a fork.

    Raises:
        ConfigError: buckets or options that `atc` does not take, or a cache that cannot be used.
        ModelError: the model cannot be compiled; has what `atc` said and how to repeat it.
        DeviceUnavailable: there is no `atc` on this machine.
    """
    request = replace(request, model=request.model.absolute())
    line = arguments(request)
    if note := precision_note(request):
        log.warning("%s: %s", request.model, note)
    external = external_data(request.model)
    named = named_files(request.model.parent, request.options)
    cann = find_cann(os.environ)
    recipe = {
        "model": file_digest(request.model),
        "external": {name: file_digest(path) for name, path in external},
        "arguments": list(line),
        "files": {key: file_digest(path) for key, path in named.items()},
        "cann": cann.version,
    }
    compiled = cache.find_or_make(
        recipe,
        lambda folder: _compile(cann, request, external, named, folder, quiet),
        title=str(request.model),
    )
    log.info(
        "%s %s for %s: %s, %.1f MiB",
        "compiled" if compiled.fresh else "compiled before:",
        request.model,
        request.soc,
        compiled.path,
        compiled.nbytes / 2**20,
    )
    return compiled


def _compile(
    cann: Cann,
    request: CompileRequest,
    external: Sequence[tuple[str, Path]],
    named: Mapping[str, Path],
    folder: Path,
    quiet: Quiet,
) -> Path:
    """Run `atc` in a folder and return the `.om` that it wrote there."""
    if external and request.model.is_symlink():
        request = replace(request, model=_copied(request.model, external, folder / "model"))
    files = {key: str(path.resolve()) for key, path in named.items()}
    options = tuple((key, files.get(key, value)) for key, value in request.options)
    line = [f"--model={request.model}", *arguments(replace(request, options=options))]
    num_gears = len(gears_of(request).values)
    log.info("compiling %s for %s: %d gears", request.model, request.soc, num_gears)
    # Of a path in full the first ".om" would be taken for the file's end, whatever folder has it.
    # Source: hicann/ge base/common/helper/model_helper.cc, SaveSoStoreModelPartitionInfo.
    line.append("--output=model")
    status, output = _run(cann.command(line), folder, request, quiet)
    made = sorted(folder.glob("*.om"))
    if status == 0 and len(made) == 1:
        return made[0]
    raise ModelError(
        f"{request.model} cannot be compiled for {request.soc}: atc {_outcome(status)}: "
        f"{_error_lines(output)}; to repeat it: {cann.shown(line)}"
    )


def _copied(model: Path, external: Sequence[tuple[str, Path]], into: Path) -> Path:
    """Return a model that is no link any more, with its weights beside it.

    `atc` follows a link to the model first, and looks for weights beside what it leads to: there
    may lie another release's, or none.
    Source: hicann/ge parser/onnx/onnx_parser.cc, `SetExternalPath`.
    """
    files = (model, *(path for _, path in external))
    copy_files(files, model.parent, into, most_bytes=sys.maxsize)
    return into / model.name


def _run(
    command: list[str], folder: Path, request: CompileRequest, quiet: Quiet
) -> tuple[int, str]:
    """Return the status and the output of a command; however this ends, so does the command."""
    # A file, not a pipe: processes that atc leaves behind would keep a pipe open.
    output = folder / "output.txt"
    try:
        with output.open("wb") as file, quiet():
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise DeviceUnavailable(f"atc is started by bash, which failed: {error}") from error
    with process:  # at its end closes standard input, and waits
        status = _wait(process, request)
    return status, output.read_text(encoding="utf-8", errors="replace")


def _environment() -> dict[str, str]:
    """Return this process's without what an executor has for its own Python: atc starts CANN's.

    atc loads that Python's library by its name, mostly through LD_LIBRARY_PATH, of which an
    executor has CANN's part alone: in CANN's image the library is not there.
    Source: hicann/ge op_compile_adapter, py_decouple.cc; Ascend/cann-container-image.
    """
    package = str(Path(ge_backend.__file__).resolve().parent.parent)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    paths = environment.pop("PYTHONPATH", "").split(os.pathsep)
    if kept := [path for path in paths if path not in {"", package}]:
        environment["PYTHONPATH"] = os.pathsep.join(kept)
    library = Path(*(sysconfig.get_config_var(name) or "" for name in ("LIBDIR", "INSTSONAME")))
    if library.match("libpython*.so*") and library.is_file():
        given = environment.get("LD_LIBRARY_PATH", "")
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [given, str(library.parent)]))
    return environment


def _wait(process: subprocess.Popen[bytes], request: CompileRequest) -> int:
    started = time.monotonic()
    while True:
        try:
            return process.wait(timeout=PROGRESS_S)
        except subprocess.TimeoutExpired:
            log.info("compiling %s: %.0f s", request.model, time.monotonic() - started)


def _outcome(status: int) -> str:
    if status in {_KILLED, -9}:
        return "was killed, most likely because the machine's memory ran out"
    return f"ended with status {status}" if status else "wrote no .om file, or several"


def _error_lines(output: str) -> str:
    """Return what `atc` said about the error, in one line: its codes with cause and solution."""
    lines = [line.strip() for line in output.partition(_TRACEBACK)[0].splitlines() if line.strip()]
    first = next((at for at, line in enumerate(lines) if _CODE.search(line)), None)
    chosen = lines[-_LAST_LINES:] if first is None else lines[first:]
    return " ".join(chosen)[:_LONGEST] or "it printed nothing"
