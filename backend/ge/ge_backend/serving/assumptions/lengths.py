"""Which lengths of a graph's inputs go together, and at which the graph runs.

A file's names say it, where it has any; they are the first guess, and no more. The others: that all
lengths are one, and that one is the sum of the others, as of a mask over what came before and what
is new. A guess holds if the graph runs with a size of its own for every length that the guess tells
apart; then lengths that it takes for one are tried apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ge_backend.model.config.model import TensorConfig
from ge_backend.model.layout.validate import WELL_KNOWN, tensor_named
from ge_backend.serving.assumptions.trial import Trial
from ge_backend.tensors import Shape, Signature, TensorSpec

__all__ = ["SCALES", "Lengths", "fixed_sizes", "found_lengths", "named"]

# Sizes that are tried, one row after another: no two sums of the first are alike; graphs of images
# and sounds take multiples of something, and none so small.
PRIMES = (5, 7, 11, 17, 29, 47, 79, 131)
STEPS = ((16, 4), (64, 32), (256, 64), (1024, 256), (4096, 1024), (16384, 4096))
SCALES = (PRIMES, *(tuple(first + step * at for at in range(8)) for first, step in STEPS))
# Sums are looked for at the first of them.
SUM_SCALES = 2
# This many groups of lengths are tried apart; of more lengths those of equal inputs are one.
MAX_SPLITS = 12
MANY = 6

Place = tuple[str, int]  # an input and one of its dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A guess, or what is known.

    Attributes:
        inputs: the graph's; every free dimension has a name, and those of one name go together.
        batch: the name of the axis of rows, "" where there is none.
        sums: by the name of an axis that is a sum, the names of its parts.
        scale: which of `SCALES` sizes are from.
        limits, least: bounds of axes, by name.
        fixed: the only sizes of axes that config.pbtxt, or the graph, fixes, by name.
    """

    inputs: tuple[TensorSpec, ...]
    batch: str
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scale: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The axes that have sizes of their own, in the inputs' order; without the rows."""
        named = dict.fromkeys(name for spec in self.inputs for name in spec.axes if name)
        return [name for name in named if name != self.batch and name not in self.sums]

    def sizes(self, rows: int, first: int = 0) -> dict[str, int]:
        """Return a size for each axis by name, each its own: from a place of the scale on."""
        scale = SCALES[self.scale]
        sizes = {
            name: self._bounded(name, scale[(first + at) % len(scale)])
            for at, name in enumerate(self.names)
        }
        sizes |= {total: sum(sizes[part] for part in parts) for total, parts in self.sums.items()}
        return {**sizes, self.batch: self._bounded(self.batch, rows)} if self.batch else sizes

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, Shape]:
        """Return every input's shape for these sizes."""
        return {
            spec.name: tuple(
                sizes[name] if dim < 0 else dim
                for dim, name in zip(spec.dims, spec.axes, strict=True)
            )
            for spec in self.inputs
        }

    def places(self, specs: Iterable[TensorSpec]) -> dict[str, int]:
        """Return where tensors have their rows, by the names of those that have any."""
        batch = self.batch
        return {spec.name: spec.axes.index(batch) for spec in specs if batch and batch in spec.axes}

    def runs(self, trial: Trial) -> bool:
        """Whether the graph runs with two rows, and a size of its own for each axis."""
        return trial.run(self.shapes(self.sizes(2))) is not None

    def _bounded(self, name: str, size: int) -> int:
        if name in self.fixed:
            return self.fixed[name]
        return min(max(size, self.least.get(name, 1)), self.limits.get(name, size))


def fixed_sizes(
    inputs: Sequence[TensorSpec], declared: Sequence[TensorConfig], *, batched: bool
) -> dict[str, int]:
    """Return the sizes that config.pbtxt fixes of axes that a graph leaves open, by their names."""
    sizes_of: dict[str, set[int]] = {}
    for spec in map(named, inputs):
        tensor = tensor_named(declared, spec.name)
        dims = () if tensor is None else ((-1,) * batched + tensor.graph_dims)
        if len(dims) == len(spec.dims):
            for name, size in zip(spec.axes, dims, strict=True):
                sizes_of.setdefault(name, set()).add(size)
    return {
        name: min(sizes)
        for name, sizes in sizes_of.items()
        if name and len(sizes) == 1 and -1 not in sizes
    }


def named(spec: TensorSpec, *, skip: int = 0) -> TensorSpec:
    """Return a tensor whose free dimensions all have names: their own where the file gives none.

    `?` is none: Paddle's converter gives it to all.
    """
    return replace(
        spec,
        axes=tuple(
            (name if name not in ("", "?") or at < skip else f"{spec.name}.{at}") if dim < 0 else ""
            for at, (dim, name) in enumerate(zip(spec.dims, spec.axes, strict=True))
        ),
    )


def found_lengths(
    trial: Trial,
    signature: Signature,
    *,
    batched: bool | None,
    given: Collection[str] = (),
    fixed: Mapping[str, int] = MappingProxyType({}),
    states: Mapping[str, int] = MappingProxyType({}),
) -> Lengths | None:
    """Return the lengths that go together; None where the graph takes no made-up input.

    Args:
        trial: of the graph.
        signature: with the names that the file, or the configuration, gives.
        batched: whether inputs begin with a batch; None where that is to be found out.
        given: inputs whose names the configuration gives: those are not doubted.
        fixed: the only sizes of axes, by name.
        states: by input that takes a state, which of its dimensions is the rows.
    """
    inputs = tuple(map(named, signature.inputs))
    first = {spec.name: states.get(spec.name, 0) for spec in inputs if -1 in spec.dims}
    begin = bool(first) and all(
        spec.dims[first[spec.name]] < 0 for spec in inputs if spec.name in first
    )
    guesses = [
        Lengths(
            inputs=_with_batch(inputs, first) if rows else inputs,
            batch=_batch_name(inputs, first) if rows else "",
            limits=signature.axis_limits,
            least=signature.axis_least,
            fixed=fixed,
        )
        for rows in ((True, False) if batched is None and begin else (bool(batched) and begin,))
    ]
    if begin and not guesses[-1].batch:  # an exporter names an axis that the graph has as 1
        ones = {spec.axes[first[spec.name]]: 1 for spec in inputs if spec.name in first}
        guesses.append(replace(guesses[-1], fixed={**fixed, **ones}))
    for guess in guesses:
        for scale in range(len(SCALES)):
            for other in _guesses(replace(guess, scale=scale)):
                if other.runs(trial):
                    trial.raise_bounds(other.shapes(other.sizes(2)))
                    return _split(trial, other, given)
    return None


def _batch_name(inputs: Sequence[TensorSpec], first: Mapping[str, int]) -> str:
    names = [spec.axes[first[spec.name]] for spec in inputs if spec.name in first]
    return names[0]


def _with_batch(inputs: Sequence[TensorSpec], first: Mapping[str, int]) -> tuple[TensorSpec, ...]:
    """Return the inputs with one name for the rows of all."""
    batch = _batch_name(inputs, first)

    def named_so(spec: TensorSpec) -> TensorSpec:
        at = first.get(spec.name, -1)
        axes = tuple(batch if place == at else name for place, name in enumerate(spec.axes))
        return replace(spec, axes=axes)

    return tuple(map(named_so, inputs))


def _guesses(guess: Lengths) -> Iterator[Lengths]:
    yield guess
    names = guess.names
    if len(names) > 1:
        yield _renamed(guess, dict.fromkeys(names, names[0]))
    if guess.scale < SUM_SCALES:
        yield from _sums(guess)
        if (alike := _alike(guess)).inputs != guess.inputs:
            yield from _sums(alike)


def _sums(guess: Lengths) -> Iterator[Lengths]:
    """Yield guesses in which one axis, or two, are the sum of all others."""
    names = guess.names
    masks = {
        name
        for spec in guess.inputs
        if "mask" in spec.name or WELL_KNOWN.get(spec.name) == "mask"
        for name in spec.axes
    }
    ordered = sorted(names, key=lambda name: (name not in masks, "+" not in name))
    for count in (1, 2):
        for totals in itertools.combinations(ordered, count):
            parts = tuple(name for name in names if name not in totals)
            if len(parts) > 1:
                yield replace(guess, sums=dict.fromkeys(totals, parts))


def _alike(guess: Lengths) -> Lengths:
    """Return a guess in which inputs of one type and shape have equal lengths."""
    first: dict[tuple[object, ...], str] = {}
    new: dict[str, str] = {}
    for spec in guess.inputs:
        for at, name in enumerate(spec.axes):
            if name and name != guess.batch and spec.dtype.numpy.kind == "f":
                new.setdefault(name, first.setdefault((spec.dtype, spec.dims, at), name))
    return _renamed(guess, new)


def _renamed(guess: Lengths, new: Mapping[str, str]) -> Lengths:
    inputs = tuple(
        replace(spec, axes=tuple(new.get(name, name) for name in spec.axes))
        for spec in guess.inputs
    )
    return replace(guess, inputs=inputs)


def _split(trial: Trial, known: Lengths, given: Collection[str]) -> Lengths:
    """Return it with the axes that the graph takes at sizes of their own told apart.

    What the backend makes by the first input's lengths stays with that; so does what changes no
    answer, as an input that the graph does not use.
    """
    tried = 0
    for name in known.names:
        places = _movable(known, name, given)
        for count in range(1, len(places) + 1):
            for chosen in itertools.combinations(places, count):
                if tried >= MAX_SPLITS or not set(chosen) <= set(places):
                    continue
                tried += 1
                apart = _moved(known, chosen)
                if apart.runs(trial) and _used(trial, known, apart):
                    known = apart
                    places = [place for place in places if place not in chosen]
    return known


def _movable(known: Lengths, name: str, given: Collection[str]) -> list[Place]:
    """Return the places of an axis but the first, and those that are made of that."""
    places = [
        (spec, at) for spec in known.inputs for at, axis in enumerate(spec.axes) if axis == name
    ]
    if len(places) > MANY:
        kinds = {(spec.dtype.name, spec.dims, at): (spec, at) for spec, at in reversed(places)}
        places = list(reversed(kinds.values()))
    return [
        (spec.name, at)
        for spec, at in places[1:]
        if spec.name not in WELL_KNOWN and spec.name not in given
    ]


def _moved(known: Lengths, places: Collection[Place]) -> Lengths:
    """Return a guess in which these have an axis of their own."""
    own = "{}.{}".format(*min(places))
    inputs = tuple(
        replace(
            spec,
            axes=tuple(
                own if (spec.name, at) in places else name for at, name in enumerate(spec.axes)
            ),
        )
        for spec in known.inputs
    )
    return replace(known, inputs=inputs)


def _used(trial: Trial, known: Lengths, apart: Lengths) -> bool:
    """Whether lengths of their own change any answer, where all else is as it was."""
    sizes = known.sizes(2)
    other = {**apart.sizes(2), **sizes}
    one, two = trial.run(known.shapes(sizes)), trial.run(apart.shapes(other))
    if one is None or two is None:
        return False
    return any(
        two[name].shape != array.shape or two[name].tobytes() != array.tobytes()
        for name, array in one.items()
    )
