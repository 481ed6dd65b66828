"""Which files make one offline model: one, or a grid of files, each for one bucket.

    model.om                               one file, whatever shapes it was compiled for
    model.1x64.om  model.8x64.om  …        one model: each file has one shape, and its name says
                                           which: rows, then one size per axis that differs
    model.om.json                          may stand beside either: what the file cannot say

The last one names dimensions, `{"axes": {"input_ids": ["batch", "sequence"]}}`, since an `.om`
keeps no names for them. Dimensions of one name always have the same size. It may also say in which
order `--input_shape` named the inputs, `{"order": ["input_ids", "attention_mask"]}`, where the
file's gears leave that open.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ge_backend.errors import ModelError
from ge_backend.tensors import Shape

__all__ = ["OmFile", "axes_file", "grid_file", "om_files", "read_axes", "read_order"]

_LABELLED = re.compile(r"(?P<stem>.+)\.(?P<label>\d+(x\d+)*)\.om")


@dataclass(frozen=True, slots=True, order=True)
class OmFile:
    """One file.

    Attributes:
        label: the sizes in its name; empty where it has none.
    """

    label: Shape
    path: Path = field(compare=False)


def om_files(path: Path) -> tuple[OmFile, ...]:
    """Return the files of the model that a file belongs to, by size.

    Raises:
        ModelError: files of one grid have names of different lengths.
    """
    stem, label = _split(path)
    if not label:
        return (OmFile((), path),)
    found = [OmFile(_split(other)[1], other) for other in path.parent.glob("*.om")]
    files = sorted(file for file in found if file.label and _split(file.path)[0] == stem)
    odd = next((file for file in files if len(file.label) != len(files[0].label)), None)
    if odd is not None:
        raise ModelError(
            f"{odd.path} and {files[0].path.name} belong to one model, so their names must say "
            "equally many sizes: rows, then one size per axis"
        )
    return tuple(files)


def grid_file(directory: Path) -> Path | None:
    """Return the smallest file of the grid called `model` in a folder; None if there is none."""
    found = ((_split(path), path) for path in directory.glob("model.*.om"))
    grid = sorted((label, path) for (stem, label), path in found if stem == "model" and label)
    return grid[0][1] if grid else None


def axes_file(path: Path) -> Path:
    """Return where the names of a model's dimensions would be."""
    return path.with_name(f"{_split(path)[0]}.om.json")


def read_axes(path: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the names of dimensions by tensor; empty where nothing says them.

    Raises:
        ModelError: there is a file that says them, and it is malformed.
    """
    with _readable(path) as given:
        return {
            str(tensor): tuple(str(axis) for axis in axes)
            for tensor, axes in given.get("axes", {}).items()
        }


def read_order(path: Path) -> tuple[str, ...]:
    """Return in which order gears list the inputs; empty where nothing says it.

    Raises:
        ModelError: as `read_axes`.
    """
    with _readable(path) as given:
        return tuple(str(name) for name in given.get("order", ()))


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[dict[str, Any]]:
    """Give what stands in the file beside a model; nothing where there is none."""
    beside = axes_file(path)
    try:
        given = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {"axes": {}}
        if not {"axes", "order"} & given.keys():
            raise KeyError("axes")
        yield given
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{beside} is not readable ({type(error).__name__}: {error}); expected "
            '{"axes": {"input_ids": ["batch", "sequence"]}}, and '
            '"order": ["input_ids", "attention_mask"] where gears fit in several orders'
        ) from error


def _split(path: Path) -> tuple[str, Shape]:
    """Return a file's name without its label, and its label."""
    match = _LABELLED.fullmatch(path.name)
    if match is None:
        return path.name.removesuffix(".om"), ()
    return match["stem"], tuple(map(int, match["label"].split("x")))
