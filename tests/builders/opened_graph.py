"""A graph of a test, opened inside this process as an instance of its model opens it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ge_backend.device.base import GraphSource
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.model.config.model import ModelConfig

__all__ = ["opened_graph"]


@contextmanager
def opened_graph(
    folder: Path,
    model: bytes,
    *,
    engine: str = "",
    precision: str = "origin",
    pbtxt: str = "",
    weights: bytes = b"",
    **document: object,
) -> Iterator[tuple[Session, Callable[..., ModelConfig]]]:
    """Yield a session with a graph, and what reads a configuration of its model.

    Args:
        folder: an empty one, of the model.
        model: an ONNX file, or an OpenVINO IR.
        engine: what runs it; "" is the first.
        precision: what it computes in.
        weights: of an IR.
        pbtxt: the text of the model's config.pbtxt.
        document: the same, as the host's JSON has it.
    """
    version = folder / "1"
    version.mkdir()
    path = version / ("model.xml" if weights else "model.onnx")
    path.write_bytes(model)
    if weights:
        path.with_suffix(".bin").write_bytes(weights)
    (folder / "config.pbtxt").write_text(pbtxt)

    def read(**more: object) -> ModelConfig:
        whole = {"name": "m", **document, **more}
        return ModelConfig.read(whole, directory=version, version="1", environment={})

    source = GraphSource.of(path, threads=1, engine=engine, precision=precision)
    connect = functools.partial(connect_inline, "cpu", 0, 0)
    session = Session(connect, source, arena_bytes=1 << 16, on_restart=print)
    try:
        yield session, read
    finally:
        session.close()
