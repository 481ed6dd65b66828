"""An ONNX model on an NPU: compiled for its buckets, all at once, and run as an offline model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ge_backend.device.arrays import into_place
from ge_backend.device.base import Graph
from ge_backend.device.resident.buffers import Bound, BufferMemory, bound_graph, memory_of
from ge_backend.errors import GraphFailed, ModelError
from ge_backend.tensors import PREPARED, Array, DataType, Shape, Signature, TensorSpec, agree

__all__ = ["CompiledGraph"]


# ATC gives these types for what ONNX has in those: TopK's indices, of which GE has no other.
# Source: hicann/ops-nn, topk_proto.h: indices are DT_INT32.
_NARROWED = {"INT64": "INT32"}


@dataclass(slots=True)
class _Held:
    """A loaded model, and how many runs use it.

    Attributes:
        names: its own of the outputs, by ours; they are in the same order.
        narrow: outputs, by our names, that it gives in fewer bits than we do.
    """

    graph: Graph
    names: Mapping[str, str]
    narrow: Mapping[str, DataType]
    users: int = 0

    def places(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the places for outputs by the model's names; what it can write as it is."""
        return {
            own: outputs[name]
            for name, own in self.names.items()
            if name in outputs and name not in self.narrow
        }

    def ours(self, results: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return a run's results by our names and in our types, in their places."""
        found = {name: results[own] for name, own in self.names.items() if own in results}
        for name, dtype in self.narrow.items():
            if name in found:
                found[name] = into_place(found[name].astype(dtype.numpy), outputs.get(name))
        return found


class CompiledGraph(Graph):
    """A graph that has no shapes until it is compiled for some; see `Graph`.

    Args:
        path: the ONNX file.
        signature: what it says about its tensors. The offline model has the same outputs in the
            same order; their names are made from this, and INT32 is made INT64 where this says so.
        compiled: compiles it for these sets of input shapes and loads the `.om` file.
    """

    shape_policy = PREPARED

    def __init__(
        self,
        path: Path,
        signature: Signature,
        compiled: Callable[[Sequence[Mapping[str, Shape]]], Graph],
    ) -> None:
        self.signature = signature
        self._path = path
        self._compiled = compiled
        self._current: _Held | None = None
        self._changed = threading.Condition()

    def compile(self, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Compile for these shapes, and only then take the place of what runs meanwhile.

        For a while both are loaded. If the new one cannot be, the former one stays.
        """
        graph = self._compiled(shapes)
        try:
            held = self._checked(graph)
        except BaseException:
            graph.close()
            raise
        self._replace(held)

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """See that it was compiled for these shapes."""
        with self._held() as held:
            held.graph.prepare(inputs)

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the work memory of the compiled model; 0 before it is compiled."""
        current = self._current
        return 0 if current is None else current.graph.workspace_bytes(shapes)

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        with self._held() as held:
            results = held.graph.run(inputs, held.places(outputs), exclusive=exclusive)
            return held.ours(results, outputs)

    def device_memory(self) -> BufferMemory | None:
        """Return the compiled model's; see `BoundGraph`. None where an output is made wide here."""
        with self._held() as held:
            return None if held.narrow else memory_of(held.graph)

    def run_bound(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], bound: Bound
    ) -> dict[str, Array]:
        """Run once; see `BoundGraph`."""
        with self._held() as held:
            theirs = bound_graph(held.graph)
            results = theirs.run_bound(inputs, held.places(outputs), bound.renamed(held.names))
            return held.ours(results, outputs)

    def close(self) -> None:
        """Unload what was compiled; the file stays in the cache."""
        self._replace(None)

    @contextlib.contextmanager
    def _held(self) -> Iterator[_Held]:
        """Keep what is compiled now from being unloaded."""
        with self._changed:
            current = self._current
            if current is None:
                raise GraphFailed(
                    f"{self._path} was not compiled yet; its buckets are compiled first"
                )
            current.users += 1
        try:
            yield current
        finally:
            with self._changed:
                current.users -= 1
                self._changed.notify_all()

    def _replace(self, following: _Held | None) -> None:
        """Let later runs take this one, and unload the former once its runs have ended."""
        with self._changed:
            former, self._current = self._current, following
            if former is not None:
                self._changed.wait_for(lambda: not former.users)
        if former is not None:
            former.graph.close()

    def _checked(self, graph: Graph) -> _Held:
        """See that the compiler has changed neither inputs nor outputs, but for `_NARROWED`."""
        wanted, made = self.signature, graph.signature
        if (
            len(made.inputs) != len(wanted.inputs)
            or len(made.outputs) != len(wanted.outputs)
            or not all(map(_may_be_given, wanted.outputs, made.outputs))
            or not all(_may_be(spec, made.input(spec.name)) for spec in wanted.inputs)
        ):
            raise ModelError(
                f"{self._path} takes {_described(wanted.inputs)} and gives "
                f"{_described(wanted.outputs)}; compiled, it takes {_described(made.inputs)} and "
                f"gives {_described(made.outputs)}; compile it without options that change these"
            )
        pairs = list(zip(wanted.outputs, made.outputs, strict=True))
        return _Held(
            graph,
            names={own.name: other.name for own, other in pairs},
            narrow={own.name: own.dtype for own, other in pairs if own.dtype != other.dtype},
        )


def _may_be(wanted: TensorSpec, made: TensorSpec | None) -> bool:
    """Whether a compiled input has the type and shape that were wanted, as far as each says it."""
    return made is not None and made.dtype == wanted.dtype and agree(wanted.dims, made.dims)


def _may_be_given(wanted: TensorSpec, made: TensorSpec) -> bool:
    """Whether a compiled output has the type that was wanted, or one that is made that again."""
    return made.dtype == wanted.dtype or made.dtype.name == _NARROWED.get(wanted.dtype.name)


def _described(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.describe()}" for spec in specs)
