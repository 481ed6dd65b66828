"""A model without a server: what a stub opens, for one model file, on any device."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ge_backend.metrics import Recorder
from ge_backend.model.config.model import ModelConfig
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.request import check_request
from ge_backend.serving.connect import complete_document
from ge_backend.serving.opening import open_model
from ge_backend.serving.warmup.store import Store
from ge_backend.tensors import Array

__all__ = ["Local", "open_local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """An opened pipeline; `buckets` is how many it prepared."""

    pipeline: Pipeline
    buckets: int

    def run(self, batch: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Return the outputs of each request of a batch; the arrays are the caller's.

        Raises:
            GeError: one of them failed.
        """
        layout = self.pipeline.layout
        requests = [check_request(index, given, layout) for index, given in enumerate(batch)]
        results: list[dict[str, Array]] = [{} for _ in requests]
        for reply in self.pipeline.run(requests):
            if reply.error is not None:
                raise reply.error
            results[reply.request] = {name: array.copy() for name, array in reply.outputs.items()}
        return results


@contextmanager
def open_local(
    model: Path, *, device: str, rows: int, parameters: Mapping[str, str], inline: bool = False
) -> Iterator[Local]:
    """Load a model as a stub does, and measure its buckets.

    Args:
        model: its file.
        device: `cpu`, `cuda:0`.
        rows: the most of a batch.
        parameters: as in config.pbtxt.
        inline: the executor is in this process, not in one of its own.
    """
    chosen = {**parameters, "device": device, "learn": "off"}
    if inline:
        chosen["executor"] = "inline"
    document = {
        "name": "encoder",
        "backend": "ge",
        "max_batch_size": rows,
        "default_model_filename": model.name,
        "parameters": {key: {"string_value": text} for key, text in chosen.items()},
    }
    read = functools.partial(ModelConfig.read, directory=model.parent, version="1", environment={})
    config = read(complete_document(document, read(document)))
    recorder = Recorder()
    pipeline, learner = open_model(config, recorder, Store(None), on_restart=lambda _: None)
    try:
        yield Local(pipeline=pipeline, buckets=int(recorder.drain()["ge_buckets", ()]))
    finally:
        learner.close()
        pipeline.close()
