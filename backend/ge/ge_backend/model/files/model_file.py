"""Which file of a version folder is the model, and which files belong to it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from ge_backend.errors import ModelError
from ge_backend.model.config.engine_table import ENGINES, file_ends
from ge_backend.model.config.settings import COMPILE_PREFIXES
from ge_backend.model.files.archive import is_pickled
from ge_backend.model.files.encoder_folder import CONFIG, encoder_files
from ge_backend.model.files.om_files import axes_file, grid_file, om_files
from ge_backend.model.files.onnx_file import external_data
from ge_backend.model.files.tokenizer_file import TOKENIZER, tokenizer_files

__all__ = [
    "canonical",
    "find_model_file",
    "model_bytes",
    "model_files",
    "named_files",
    "stamp_of",
]

# A file of another name is the model if it is the only one of these, as the C++ GE backend has it.
SUFFIXES = tuple(end for end in file_ends() if end.startswith("."))
# Whole names, which also stand beside a graph that was downloaded: config.json, tokenizer.json, …
BESIDE = tuple(end for end in file_ends() if end not in SUFFIXES)
# In this order when a folder holds several and config.pbtxt names none.
NAMES = (*(f"model{end}" for end in (*SUFFIXES, ".null")), *BESIDE)
# What torch saves as a program ends so, and by habit what it has pickled.
PROGRAM = ".pt"
# llama.cpp's: a checkpoint's weights under other names, mostly of fewer bits.
GGUF = ".gguf"
# The model of a folder that has the file's name, where weights lie beside it: onnxruntime_backend
# r24.10 src/onnxruntime.cc, `ModelState::LoadModel`.
IN_FOLDER = "model.onnx"
# On an NPU what was compiled for it comes first; no other device can run it.
GRID = "model.<rows>x<size>.om"
OFFLINE = ("model.om", GRID)
# Options whose value may be the name of a file: the compiler's, and what an offline model is told.
NAMING = (*COMPILE_PREFIXES, "npu.aipp")


def find_model_file(directory: Path, filename: str, device: str = "") -> Path:
    """Return the model file of a version folder: `default_model_filename`, else a known name.

    Where nothing has one, or only a `tokenizer.json` and its like without weights, it is the only
    file that may be a graph, which no pickle is. Of a grid of offline models it is the smallest
    file.

    Args:
        directory: the version folder.
        filename: what config.pbtxt says; "" where it says nothing.
        device: `cpu`, `npu:0`; what was compiled for one kind of device comes first there.

    Raises:
        ModelError: there is none; says what was looked for and what is there. Or it cannot be read.
    """
    try:
        return _found(directory, filename, device)
    except OSError as error:
        raise ModelError(f"no model file in {directory}, which cannot be read: {error}") from error


def _found(directory: Path, filename: str, device: str) -> Path:
    known = (*OFFLINE, *NAMES) if device.startswith("npu") else (*NAMES, *OFFLINE)
    candidates = (filename,) if filename else known
    for name in candidates:
        found = grid_file(directory) if name == GRID else directory / name
        if found is not None and found.is_dir():
            found /= IN_FOLDER
        if found is not None and found.is_file():
            graph = None if filename or name not in BESIDE else _only_graph(directory)
            return found if graph is None or any(directory.glob("*.safetensors")) else graph
    if not filename and (graph := _only_graph(directory)):
        return graph
    there = ", ".join(sorted(map(_described, directory.iterdir()))) or "nothing"
    raise ModelError(
        f"no model file in {directory}: looked for {', '.join(candidates)}, found {there}; "
        "put the model there or name it with default_model_filename"
    )


def _only_graph(directory: Path) -> Path | None:
    """Return the only file that may be a graph, whatever its name; None where it is not alone."""
    files = [path for path in directory.iterdir() if path.suffix in SUFFIXES and path.is_file()]
    graphs = [path for path in files if not _is_pickle(path)]
    return graphs[0] if len(graphs) == 1 else None


def _is_pickle(path: Path) -> bool:
    return path.suffix == PROGRAM and is_pickled(path)


def _described(path: Path) -> str:
    """Return a file's name, with where it leads if it is a link to nothing, or why it is none."""
    if _is_pickle(path):
        return f"{path.name} (pickled by torch.save, no program)"
    if path.suffix == GGUF:
        return f"{path.name} (GGUF is not read: take the checkpoint that it was made of)"
    if path.is_symlink() and not path.exists():
        return f"{path.name} (a link to {path.readlink()}, which is not there)"
    return path.name


def canonical(path: Path, options: Iterable[tuple[str, str]] = ()) -> Path:
    """Return the one path by which a file is known, however it is reached.

    A link is followed where nothing is lost by it: the file that it leads to has a name with the
    same end, which says which engines run it (caches of downloads call files by their hash), and
    the files that lie there beside it are those that lie beside the link. Otherwise the link is
    what is loaded, and what lies beside the link belongs to it, as for ONNX Runtime and OpenVINO.
    The name of an offline model may say its shape, and what describes a checkpoint has the whole
    folder beside it: they keep theirs.
    """
    link, file = path.parent.resolve() / path.name, path.resolve()
    end = next((end for end in file_ends() if path.name.endswith(end)), path.suffix)
    by_name = path.suffix == ".om" or path.name == CONFIG or not file.name.endswith(end)
    return link if by_name or not _same_files(link, file, tuple(options)) else file


def _same_files(link: Path, file: Path, options: Sequence[tuple[str, str]]) -> bool:
    """Whether a model is made of the same files by the name of a link and by that of its target."""
    try:
        here, there = model_files(link, options), model_files(file, options)
    except ModelError:
        return False
    return [one.resolve() for one in here] == [one.resolve() for one in there]


def model_files(path: Path, options: Iterable[tuple[str, str]] = ()) -> tuple[Path, ...]:
    """Return all files that make the model that a file is, or is one of.

    Those that options name are among them if they lie in its folder, or below it.

    Raises:
        ModelError: their names do not fit together, or weights outside an ONNX file are missing.
    """
    named = (file for file in named_files(path.parent, options).values() if ".." not in file.parts)
    beside = (file for file in named if file.is_relative_to(path.parent))
    return tuple(dict.fromkeys((*_own_files(path), *beside)))


def model_bytes(path: Path, options: Iterable[tuple[str, str]] = ()) -> int:
    """Return the bytes of all files that make a model; see `model_files`.

    Raises:
        ModelError: as `model_files`.
        OSError: one of them is not there.
    """
    return sum(file.stat().st_size for file in model_files(path, options))


def named_files(folder: Path, options: Iterable[tuple[str, str]]) -> dict[str, Path]:
    """Return the options whose value is a file; relative ones lie in the model's folder."""
    files = {}
    for key, value in options:
        try:
            path = folder / value
            if value and key.startswith(NAMING) and path.is_file():
                files[key] = path
        except (OSError, ValueError):
            continue  # too long for a path, or with a NUL
    return files


def _own_files(path: Path) -> tuple[Path, ...]:
    if path.name == CONFIG:
        return encoder_files(path.parent)
    if path.name == TOKENIZER:
        return tokenizer_files(path)
    if path.suffix == ".onnx":
        return (path, *(file for _, file in external_data(path)))
    if path.suffix != ".om":
        rows = (row for row in ENGINES if path.name.endswith(row.ends))
        files = (path.with_suffix(end) for end in dict.fromkeys(e for r in rows for e in r.beside))
        return (path, *(file for file in files if file.is_file()))
    names = axes_file(path)
    return (*(file.path for file in om_files(path)), *((names,) if names.is_file() else ()))


def stamp_of(paths: Sequence[Path]) -> str:
    """Return what changes when a file changes, another takes its place, or one more comes.

    Archives that can be made again bit by bit and layers of container images give all files one
    modification time, so that one of the same size differs from its successor only by where it
    lies: device and inode. A copy of the files has another stamp; a hard link to one has the same.
    """
    states = [(path.name, path.stat()) for path in paths]
    stamps = [f"{name} {s.st_mtime_ns}-{s.st_size}-{s.st_dev}-{s.st_ino}" for name, s in states]
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:32]
