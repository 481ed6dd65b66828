"""A model instance that generates text: requests go to the executor, what comes back is sent on.

The model is decoupled, so `execute` returns at once and every response goes through its request's
sender, from one thread. While that thread is busy sending, tokens that come are joined on the way
(see `ge_text/stub/client.py`): a slow host never holds the device up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import triton_python_backend_utils as pb_utils

from ge_backend.errors import Cancelled, GeError, OutOfMemory
from ge_backend.host.codec import error_response
from ge_backend.host.counters import Counters, begin_at_zero
from ge_backend.host.instance import Instance
from ge_backend.host.room import Room
from ge_backend.metrics import METRICS, Kind, Recorder
from ge_backend.model.config.settings import without_effect
from ge_backend.serving.fleet.device_state import DeviceState
from ge_text.protocol import Delta, joined
from ge_text.stub.client import GenerationClient
from ge_text.stub.description import Description
from ge_text.stub.opening import FINISHED, open_generation
from ge_text.stub.requests import TextRequest, read_text_request, write_text_response

__all__ = ["Generation"]

log = logging.getLogger(__name__)

LEVELS = [
    metric.name
    for metric in METRICS.values()
    if metric.kind is Kind.GAUGE and metric.name.startswith("ge_text_")
]
# Without a response, until a heartbeat.
BEAT_S = 1.0
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Generation:
    """The requests of one model instance.

    Args:
        client: where text is made; becomes this object's.
        recorder: counts requests, and what fails.
        counters: the thread beside it, which publishes figures; becomes this object's.
        description: what the model says of itself; None: nothing.
        parameters: as in `TextRequest`.
    """

    def __init__(
        self,
        client: GenerationClient,
        recorder: Recorder,
        counters: Counters,
        *,
        description: Description | None = None,
        parameters: bool = False,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._counters = counters
        self._description = description
        self._parameters = parameters
        self._room = Room()  # of the thread that takes what the executor posts

    @classmethod
    def open(cls, instance: Instance) -> Generation:
        """Load the checkpoint of an instance.

        Raises:
            GeError: it cannot be served as configured.
        """
        config, recorder = instance.config, instance.recorder
        for key in without_effect(instance.given.get("parameters", {}), text=True):
            log.warning("%s: no effect on a model that generates text", key)
        _count_nothing_yet(recorder, config.device)
        client = open_generation(config, recorder, on_restart=instance.note_restart)

        def sample() -> None:
            DeviceState.of(config.device, client.outstanding, up=client.ready).record(recorder)
            client.ask_stats()
            if not client.ready:  # its texts have failed, and nothing else tells
                for name in LEVELS:
                    recorder.set(name, 0.0)

        counters = instance.counters(sample, device=config.device)
        description = Description(config.directory)
        parameters = config.response_parameters
        return cls(client, recorder, counters, description=description, parameters=parameters)

    def execute(self, requests: Sequence[Any]) -> None:
        """Hand requests over; each is answered through its sender."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                asked = read_text_request(request, parameters=self._parameters)
                if asked.described is not None and self._description is not None:
                    described = self._description.answer(asked)
                    if described is not None:
                        sender.send(described, flags=FINAL)
                        continue
                self._recorder.add("ge_requests_total")
                answer = _Answer(asked, sender, self._recorder, self._room)
                self._client.submit(asked.prompt, answer)
            except GeError as error:
                _count_refusal(error, self._recorder)
                sender.send(error_response(error), flags=FINAL)

    @property
    def ready(self) -> bool:
        """Whether the executor can be reached; if not, it is tried again in the background."""
        return self._client.ready

    def close(self) -> None:
        """Let what runs end, for a while; tell the others; leave."""
        self._client.close()
        self._counters.close()


@dataclass(slots=True)
class _Answer:
    """Where the text of one request goes.

    Text comes from one thread, and another ends requests whose clients have given up. One of them
    at a time talks to the host, and none once the last response is sent: not to send another, nor
    to ask whether the client is there. Both crashed the server (seen on 2.51).
    """

    _asked: TextRequest
    _sender: Any
    _recorder: Recorder
    _room: Room
    _whole: list[list[Delta]] = field(init=False, default_factory=list)
    _first: bool = field(init=False, default=True)
    _over: bool = field(init=False, default=False)
    _lost: bool = field(init=False, default=False)  # there was no room for what came
    _sent_s: float = field(init=False, default_factory=time.monotonic)  # the last response
    _talking: threading.Lock = field(init=False, default_factory=threading.Lock)

    def add(self, deltas: Sequence[Delta], *, last: bool) -> None:
        """Take what is new, one delta per sample."""
        if not self._asked.stream:
            self._whole = self._whole or [[] for _ in deltas]
            for parts, delta in zip(self._whole, deltas, strict=True):
                parts.append(delta)
            if not last:
                return
            deltas = [joined(parts) for parts in self._whole]
        try:
            response = write_text_response(self._asked, deltas, self._room, first=self._first)
        except OutOfMemory as error:
            self._lost = True
            self.fail(error)
            return
        self._first = False
        self._send(response, FINAL if last else 0)

    def fail(self, error: GeError) -> None:
        """Take the error that ended the request."""
        if self._over:  # for want of room
            return
        _count_refusal(error, self._recorder)
        self._send(error_response(error), FINAL)

    @property
    def unwanted(self) -> bool:
        """Whether no client gets the rest; asking the host costs 10-25 us (tested on 2.51).

        One that wants that gets a heartbeat where nothing was sent for a while: if this process
        dies, the host ends none of its streams (seen on 2.51).
        """
        if self._lost:
            return True
        if not self._talking.acquire(blocking=False):
            return False
        try:
            gone = not self._over and bool(self._sender.is_cancelled())
            silent = self._asked.heartbeat and time.monotonic() - self._sent_s >= BEAT_S
            if silent and not (self._over or gone):
                self._sender.send(pb_utils.InferenceResponse(output_tensors=[]))
                self._sent_s = time.monotonic()
            return gone
        finally:
            self._talking.release()

    def _send(self, response: Any, flags: int) -> None:
        with self._talking:
            if not self._over:
                self._sent_s, self._over = time.monotonic(), flags == FINAL
                self._sender.send(response, flags=flags)


def _count_nothing_yet(recorder: Recorder, device: str) -> None:
    """Have the counters of what goes wrong begin with zero."""
    begin_at_zero(recorder, [device])
    for name in ("ge_text_failed_steps_total", "ge_text_unplanned_groups_total"):
        recorder.add(name, 0.0)
    for reason in FINISHED:
        recorder.add("ge_text_finished_total", 0.0, reason=reason)


def _count_refusal(error: GeError, recorder: Recorder) -> None:
    if not isinstance(error, Cancelled):
        log.debug("a request failed: %s", error)
    recorder.add("ge_request_failures_total", status=error.status.value)
