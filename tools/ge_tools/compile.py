"""`ge-backend compile`: models made ready for an NPU before a server asks for them."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ge_backend.engines.acl.runtime import chip_name
from ge_backend.engines.atc.cache import CompileCache, Compiled
from ge_backend.engines.atc.compile import compile_onnx
from ge_backend.engines.atc.options import gears_of
from ge_backend.errors import ConfigError
from ge_backend.model.config.model import MachineConfig
from ge_backend.model.files.om_files import axes_file
from ge_backend.tensors import Signature
from ge_tools.model.ahead import Ahead, look_ahead
from ge_tools.model.replacing import replacing
from ge_tools.report.table import table
from ge_tools.report.waiting import waiting

__all__ = ["register"]

DESCRIPTION = """\
Compiles the model.onnx of each model with CANN's atc, with all buckets of its configuration, into
the cache in which a server on an NPU looks for it. It needs the CANN toolkit, but no NPU. What was
compiled before is only found again.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "compile", help="compile ONNX models for an NPU ahead of time", description=DESCRIPTION
    )
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="folders of models")
    parser.add_argument(
        "--soc-version",
        metavar="CHIP",
        help="what it is compiled for, such as Ascend910B3; default: the NPU of this machine",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="K=V",
        help="an option of atc, or a key of the C++ GE backend; a server looks for the model with "
        "it only if config.pbtxt has it too",
    )
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FILE",
        help="copy the result there, as a model.om to serve; the names of its axes go beside it",
    )
    parser.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="where it is kept; default: GE_CACHE_DIR"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    """Compile the models one by one and print what was made; return 0.

    Raises:
        GeError: a model cannot be read or compiled; those before it are kept.
    """
    if arguments.into is not None and len(arguments.models) > 1:
        raise ConfigError("--into takes the result of one model; several were given")
    options = tuple(map(_option, arguments.option))
    soc = arguments.soc_version or chip_name()
    with _cache_folder(arguments) as folder:
        cache = CompileCache(folder)
        made = []
        for path in arguments.models:
            ahead = look_ahead(path, soc=soc, options=options, cache_dir=folder)
            with waiting(f"compiling {ahead.name} for {soc}, {len(ahead.grid.entries)} buckets"):
                made.append((ahead, compile_onnx(ahead.request, cache)))
        if arguments.into is not None:
            ahead, compiled = made[0]
            _put(ahead.signature, compiled.path, arguments.into)
        print(_as_json(made) if arguments.json else "\n".join(_as_text(made, cache)))
    return 0


def _option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"--option is {text!r}; expected a name, =, and a value")
    return key if "." in key else f"atc.{key.removeprefix('--')}", value


@contextmanager
def _cache_folder(arguments: argparse.Namespace) -> Iterator[Path]:
    """Give the folder of the cache: a temporary one where none is kept and the result is copied."""
    machine = MachineConfig.here()
    folder: Path | None = arguments.cache_dir or machine.cache_dir
    if folder is not None:
        yield folder
    elif arguments.into is None:
        raise ConfigError(
            "GE_CACHE_DIR is off, so nothing of it would be kept; give --cache-dir or --into"
        )
    else:
        with tempfile.TemporaryDirectory(prefix="ge-compile-") as temporary:
            yield Path(temporary)


def _put(signature: Signature, source: Path, target: Path) -> None:
    """Copy a compiled file, and put beside it what it does not keep.

    That is the names of its axes, and the order of the inputs in its gears.
    """
    named = {
        spec.name: spec.axes
        for spec in (*signature.inputs, *signature.outputs)
        if all(axis or dim >= 0 for dim, axis in zip(spec.dims, spec.axes, strict=True))
    }
    try:
        with replacing(axes_file(target)) as draft:
            beside = {"axes": named, "order": [spec.name for spec in signature.inputs]}
            draft.write_text(json.dumps(beside, indent=2) + "\n", encoding="utf-8")
        with replacing(target) as draft:
            shutil.copyfile(source, draft)
    except OSError as error:
        raise ConfigError(f"--into {target}: {error}") from error


def _as_text(compiled_models: list[tuple[Ahead, Compiled]], cache: CompileCache) -> list[str]:
    rows = [
        (
            ahead.name,
            str(len(gears_of(ahead.request).values)),
            f"{compiled.nbytes / 2**20:.1f}",
            f"{compiled.seconds:.1f}",
            "added" if compiled.fresh else "found",
            str(compiled.path),
        )
        for ahead, compiled in compiled_models
    ]
    kept = cache.entries()
    total = sum(entry.nbytes for entry in kept) / 2**20
    return [
        *table(("model", "gears", "MiB", "seconds", "cache", "file"), rows, left=2),
        f"cache: {len(kept)} compiled models, {total:.1f} MiB in {cache.folder}",
    ]


def _as_json(compiled_models: list[tuple[Ahead, Compiled]]) -> str:
    return json.dumps(
        [
            {
                "model": ahead.name,
                "buckets": ahead.grid.entries,
                "axes": ahead.grid.names,
                "soc_version": ahead.request.soc,
                "file": str(compiled.path),
                "bytes": compiled.nbytes,
                "seconds": compiled.seconds,
                "cached": not compiled.fresh,
            }
            for ahead, compiled in compiled_models
        ],
        indent=2,
    )
