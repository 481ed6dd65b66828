"""What a configuration leaves out, filled in with what holds of the graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ge_backend.executor.client.session import Session
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.auto_complete import completed
from ge_backend.serving.assumptions.findings import found
from ge_backend.serving.assumptions.served import keep_left_out, served
from ge_backend.serving.warmup.store import Store

__all__ = ["whole_document"]


def whole_document(
    document: Mapping[str, Any], given: ModelConfig, session: Session, store: Store
) -> dict[str, Any]:
    """Return the configuration, completed from the graph as it runs.

    Rows are batched, and lengths padded, where that was found to change no answer, or no test of it
    is possible; not where time ran out. What the configuration says of either is kept.

    Raises:
        ConfigError: as `layout.auto_complete.completed`; or it contradicts the graph.
    """
    if given.inputs and given.outputs:
        return dict(document)
    chosen = not given.max_batch_size and "max_batch_size" not in document
    batched = None if chosen else given.max_batch_size > 0
    findings = found(given, session, store, batched=batched)
    signature, fixed = findings.signature, session.shape_policy.fixed
    whole = completed(document, given, signature, fixed)
    if findings.lengths is None and not findings.late:
        return whole
    config = ModelConfig.read(
        whole, directory=given.directory, version=given.version, environment=os.environ
    )
    judged = served(config, session, store, findings)
    joined = not (judged.doubts("rows") or judged.doubts("states"))
    padded = not judged.doubts("padding")
    if chosen and config.max_batch_size and not joined:
        keep_left_out(config, session, store, judged)
        return completed(document, given, signature, fixed, apart=False)
    if not given.inputs and not (padded and judged.layout.axes):
        keep_left_out(config, session, store, judged)
        for block in whole["input"]:
            block.pop("allow_ragged_batch", None)
    return whole
