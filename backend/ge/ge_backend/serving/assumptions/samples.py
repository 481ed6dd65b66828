"""Inputs that the model's owner gives: they show what made-up values may hide.

They are requests: `.npz` files in the folder `samples` beside the version folders, one array for
each input by its name, with its rows; and requests of `model_warmup` that have files. Inputs that
one leaves out are made up at its sizes. One that does not fit the graph is left out with a warning,
since it may be meant for another version.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.warmup_samples import WarmupSample
from ge_backend.serving.assumptions.lengths import Lengths
from ge_backend.serving.assumptions.trial import Trial
from ge_backend.serving.warmup.shaped import MAX_BYTES
from ge_backend.tensors import Array, TensorSpec, agree

__all__ = ["Sample", "joined", "rows_of", "sample_files", "samples_of"]

log = logging.getLogger(__name__)

FOLDER, END = "samples", ".npz"
# No more are used, and no more rows of one.
MOST, MAX_ROWS = 8, 3
UNREADABLE = (OSError, ValueError, KeyError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request.

    Attributes:
        inputs: all of the graph's.
        given: those of them that are not made up.
        sizes: of the inputs' axes, by name, the rows among them.
    """

    inputs: Mapping[str, Array]
    given: frozenset[str]
    sizes: Mapping[str, int]


def sample_files(config: ModelConfig) -> list[Path]:
    """Return the files that samples are read from, as far as they are there."""
    named = [t.file for sample in config.warmup_samples for t in sample.values() if t.file]
    return [*_archives(config), *(path for path in named if path.is_file())]


def samples_of(config: ModelConfig, trial: Trial, lengths: Lengths) -> tuple[Sample, ...]:
    """Return the samples of a model that fit its graph; the trial has more time for them."""
    found: list[Sample] = []
    for origin, arrays in _given(config):
        unfit = _unfit(arrays, lengths)
        if unfit:
            log.warning("sample %s is not used: %s", origin, unfit)
        elif len(found) < MOST:
            found.append(_whole(arrays, trial, lengths))
    if found:
        trial.extend()
    return tuple(found)


def joined(samples: Sequence[Sample], lengths: Lengths) -> list[Sample]:
    """Return them with rows of equal sizes in one, as batches of requests; up to `MAX_ROWS`."""
    places = lengths.places(lengths.inputs)
    groups: dict[tuple[object, ...], list[Sample]] = {}
    for sample in samples:
        sizes = sorted((n, size) for n, size in sample.sizes.items() if n != lengths.batch)
        common = [(n, a.tobytes()) for n, a in sample.inputs.items() if n not in places]
        groups.setdefault((*sizes, *common), []).append(sample)
    return [_joined(group, places, lengths.batch) for group in groups.values()]


def rows_of(
    arrays: Mapping[str, Array], places: Mapping[str, int], rows: Sequence[int]
) -> dict[str, Array]:
    """Return the arrays with these rows of those that have rows, by the place of these."""
    return {
        name: array.take(rows, places[name]) if name in places else array
        for name, array in arrays.items()
    }


def _joined(group: Sequence[Sample], places: Mapping[str, int], batch: str) -> Sample:
    first = group[0]
    if not places:
        return first
    rows = min(MAX_ROWS, sum(one.sizes[batch] for one in group))
    inputs = dict(first.inputs)
    for name, at in places.items():
        inputs[name] = np.concatenate([one.inputs[name] for one in group], at).take(range(rows), at)
    return Sample(inputs=inputs, given=first.given, sizes={**first.sizes, batch: rows})


def _archives(config: ModelConfig) -> list[Path]:
    folder = config.directory.parent / FOLDER
    return sorted(folder.glob(f"*{END}")) if folder.is_dir() else []


def _given(config: ModelConfig) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """Yield what can be read of each sample, and where it is from."""
    for path in _archives(config):
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except UNREADABLE as error:
            log.warning("sample %s is not used: %s", path, error)
            continue
        yield str(path), arrays
    for at, sample in enumerate(config.warmup_samples):
        origin = f"{at} of model_warmup"
        try:
            arrays = _from_warmup(sample, batched=config.max_batch_size > 0)
        except UNREADABLE as error:
            log.warning("sample %s is not used: %s", origin, error)
            continue
        yield origin, arrays


def _from_warmup(sample: WarmupSample, *, batched: bool) -> dict[str, Array]:
    found = {}
    for name, tensor in sample.items():
        shape = (1, *tensor.dims) if batched else tensor.dims
        if tensor.file is None:
            found[name] = np.zeros(shape, tensor.dtype.numpy)
        else:
            found[name] = np.fromfile(tensor.file, tensor.dtype.numpy).reshape(shape)
    return found


def _unfit(arrays: Mapping[str, Array], lengths: Lengths) -> str:
    """Return why arrays are no sample of a graph; "" where they are one."""
    specs = {spec.name: spec for spec in lengths.inputs}
    others = sorted(arrays.keys() - specs.keys())
    if others or not arrays:
        which = f"an input {others[0]!r}" if others else "no input"
        return f"it has {which}; the graph's are {', '.join(specs)}"
    size_of: dict[str, int] = {}
    for name, array in arrays.items():
        spec = specs[name]
        if array.dtype != spec.dtype.numpy or not agree(array.shape, spec.dims) or not array.size:
            return (
                f"input {name!r} is {array.dtype} {list(array.shape)}; the graph takes "
                f"{spec.describe()}"
            )
        for axis, size in _sizes(spec, array):
            if size_of.setdefault(axis, size) != size:
                return f"axis {axis!r} of input {name!r} is {size}, and {size_of[axis]} elsewhere"
    nbytes = sum(array.nbytes for array in arrays.values())
    return f"it has {nbytes} bytes; up to {MAX_BYTES} are run" if nbytes > MAX_BYTES else ""


def _whole(arrays: Mapping[str, Array], trial: Trial, lengths: Lengths) -> Sample:
    """Return a sample of arrays that fit, the first of their rows."""
    places = lengths.places(lengths.inputs)
    few = {
        name: array.take(range(min(MAX_ROWS, array.shape[places[name]])), places[name])
        if name in places
        else array
        for name, array in arrays.items()
    }
    specs = [spec for spec in lengths.inputs if spec.name in few]
    given = {axis: size for spec in specs for axis, size in _sizes(spec, few[spec.name])}
    sizes = {**lengths.sizes(1), **given}
    sums = {total: sum(sizes[part] for part in parts) for total, parts in lengths.sums.items()}
    sizes |= {total: size for total, size in sums.items() if total not in given}
    made = trial.values(lengths.shapes(sizes))
    return Sample(inputs={**made, **few}, given=frozenset(few), sizes=sizes)


def _sizes(spec: TensorSpec, array: Array) -> list[tuple[str, int]]:
    return [(axis, size) for axis, size in zip(spec.axes, array.shape, strict=True) if axis]
