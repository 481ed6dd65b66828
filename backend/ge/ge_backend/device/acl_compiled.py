"""An ONNX model on an NPU: compiled for its buckets, all at once, and run as an offline model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ge_backend.device.base import Graph
from ge_backend.errors import GraphFailed, ModelError
from ge_backend.tensors import Array, DataType, Shape, Signature, TensorSpec

__all__ = ["CompiledGraph"]


class CompiledGraph:
    """A graph that has no shapes until it is compiled for some; see `Graph`.

    Args:
        path: the ONNX file.
        signature: what it says about its tensors. The offline model has the same outputs in the
            same order; their names are made from this.
        compiled: compiles it for these sets of input shapes and returns the `.om` file.
        load: loads such a file.
    """

    static_shapes = True
    fixed_shapes: tuple[Mapping[str, Shape], ...] = ()

    def __init__(
        self,
        path: Path,
        signature: Signature,
        compiled: Callable[[tuple[Mapping[str, Shape], ...]], Path],
        load: Callable[[Path], Graph],
    ) -> None:
        self.signature = signature
        self._path = path
        self._compiled = compiled
        self._load = load
        self._graph: Graph | None = None
        self._lock = threading.Lock()

    def compile(self, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Compile for these shapes, and only then take the place of what runs meanwhile.

        For a while both are loaded. If the new one cannot be, the former one stays.
        """
        graph = self._load(self._compiled(tuple(shapes)))
        try:
            self._check(graph)
        except BaseException:
            graph.close()
            raise
        with self._lock:
            former, self._graph = self._graph, graph
            if former is not None:
                former.close()

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """See that it was compiled for these shapes."""
        with self._lock:
            self._ready().prepare(inputs)

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the work memory of the compiled model; 0 before it is compiled."""
        with self._lock:
            return 0 if self._graph is None else self._graph.workspace_bytes(shapes)

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        with self._lock:
            graph = self._ready()
            theirs = [spec.name for spec in graph.signature.outputs]
            ours = [spec.name for spec in self.signature.outputs]
            places = {
                own: outputs[name]
                for own, name in zip(theirs, ours, strict=True)
                if name in outputs
            }
            results = graph.run(inputs, places, exclusive=exclusive)
            return {name: results[own] for own, name in zip(theirs, ours, strict=True)}

    def close(self) -> None:
        """Unload what was compiled; the file stays in the cache."""
        with self._lock:
            if self._graph is not None:
                self._graph.close()

    def _ready(self) -> Graph:
        if self._graph is None:
            raise GraphFailed(f"{self._path} was not compiled yet; its buckets are compiled first")
        return self._graph

    def _check(self, graph: Graph) -> None:
        """See that the compiler has changed neither inputs nor outputs."""
        wanted, made = self.signature, graph.signature
        types = [spec.dtype for spec in wanted.outputs]
        if _types(made.inputs) != _types(wanted.inputs) or types != [
            spec.dtype for spec in made.outputs
        ]:
            raise ModelError(
                f"{self._path} takes {_described(wanted.inputs)} and gives "
                f"{_described(wanted.outputs)}; compiled, it takes {_described(made.inputs)} and "
                f"gives {_described(made.outputs)}; compile it without options that change these"
            )


def _types(specs: Sequence[TensorSpec]) -> dict[str, DataType]:
    return {spec.name: spec.dtype for spec in specs}


def _described(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.describe()}" for spec in specs)
