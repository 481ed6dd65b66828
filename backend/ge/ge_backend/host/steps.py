"""Requests that the host schedules as steps of sequences: which are real, and whose state is whose.

Source, tested on tritonserver 2.51: in the direct strategy a slot without a request comes as a null
request whose correlation id is 0 or empty and whose inputs are uninitialised memory; what is
answered to it is dropped. START and END are bits 1 and 2 of `flags()`.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any

import triton_python_backend_utils as pb_utils

from ge_backend.errors import InvalidRequest
from ge_backend.metrics import Recorder
from ge_backend.serving.batching.request import Request
from ge_backend.serving.sequence.sequencer import Sequencer
from ge_backend.serving.sequence.slots import CorrelationId

__all__ = ["Steps", "nothing", "sequence_of"]

START, END = 1, 2


class Steps:
    """The steps of a model with states, between the host's requests and ours.

    Attributes:
        settle: notes the outcome of a step that was admitted; see `Sequencer.settle`.
    """

    def __init__(self, sequencer: Sequencer, recorder: Recorder) -> None:
        self._sequencer = sequencer
        self.settle = sequencer.settle
        self._recorder = recorder
        self._counted: Counter[str] = Counter()
        self._live = sequencer.live
        recorder.set("ge_sequences_live", self._live)

    def admit(self, read: Request, sequence: CorrelationId, request: Any) -> Request:
        """Give what was read the slot of its sequence, and return it; `end_batch` comes in the end.

        Raises:
            InvalidRequest, ExecutorLost: as `Sequencer.admit`.
        """
        flags = request.flags()
        return self._sequencer.admit(
            read,
            sequence,
            start=bool(flags & START),
            end=bool(flags & END),
            now_s=time.monotonic(),
        )

    def skip(self, index: int, request: Any) -> None:
        """Note the request at this place of the host's list, which gets an error instead."""
        with contextlib.suppress(InvalidRequest):  # whose it is can never be said
            sequence, flags = sequence_of(request), request.flags()
            start, end = bool(flags & START), bool(flags & END)
            self._sequencer.skip(index, sequence, start=start, end=end, now_s=time.monotonic())

    def end_batch(self) -> None:
        """Give up the steps that were admitted and had no outcome, and count what happened."""
        self._sequencer.settle_rest()
        happened = self._sequencer.events
        if happened.items() == self._counted.items():  # most batches only go on
            return
        for event, count in (happened - self._counted).items():
            self._recorder.add("ge_sequences_total", count, event=event)
        self._counted = Counter(happened)
        if self._sequencer.live != self._live:
            self._live = self._sequencer.live
            self._recorder.set("ge_sequences_live", self._live)


def sequence_of(request: Any) -> Any:
    """Return the id of a request's sequence: 0 or "" where it has none, and so is not real.

    Raises:
        InvalidRequest: it cannot be read; the host passes on bytes that are no text, too.
    """
    try:
        return request.correlation_id()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"sequence_id is not UTF-8: {error}") from error


def nothing() -> Any:
    """Return what is answered to a request that is not real."""
    return pb_utils.InferenceResponse(output_tensors=[])
