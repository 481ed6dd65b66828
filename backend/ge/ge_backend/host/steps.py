"""Requests that the host schedules as steps of sequences: which are real, and whose state is whose.

Source, tested on tritonserver 2.51: in the direct strategy a slot without a request comes as a null
request whose correlation id is 0 or empty and whose inputs are uninitialised memory; what is
answered to it is dropped.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any

import triton_python_backend_utils as pb_utils

from ge_backend.errors import InvalidRequest
from ge_backend.metrics import Recorder
from ge_backend.serving.sequence.sequencer import Sequencer

__all__ = ["Steps", "nothing", "sequence_of"]


class Steps:
    """The steps of a model with states, between the host's requests and ours.

    Attributes:
        sequencer: admits and settles steps; `end_batch` comes in the end.
    """

    def __init__(self, sequencer: Sequencer, recorder: Recorder) -> None:
        self.sequencer = sequencer
        self._recorder = recorder
        self._counted: Counter[str] = Counter()
        self._live = sequencer.live
        recorder.set("ge_sequences_live", self._live)

    def skip(self, index: int, request: Any) -> None:
        """Note the request at this place of the host's list, which gets an error instead."""
        with contextlib.suppress(InvalidRequest):  # whose it is can never be said
            sequence = sequence_of(request)
            self.sequencer.skip(index, sequence, request.flags(), time.monotonic())

    def end_batch(self) -> None:
        """Give up the steps that were admitted and had no outcome, and count what happened."""
        self.sequencer.settle_rest()
        happened = self.sequencer.events
        if happened.items() == self._counted.items():  # most batches only go on
            return
        for event, count in (happened - self._counted).items():
            self._recorder.add("ge_sequences_total", count, event=event)
        self._counted = Counter(happened)
        if self.sequencer.live != self._live:
            self._live = self.sequencer.live
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
