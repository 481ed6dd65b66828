"""The machine: everything that the calls share."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from acl_simulator.codes import Code
from acl_simulator.faults import Faults
from acl_simulator.machine.devices import SOCS, Context, Device
from acl_simulator.machine.handles import Handles
from acl_simulator.machine.hazards import Access, Hazards
from acl_simulator.machine.memory import DeviceMemory, Memory, padding_of
from acl_simulator.machine.streams import Stream, Times
from acl_simulator.refusals import Misuses, Refusal

__all__ = ["Machine"]


class Machine:
    """State of the simulated host and its devices.

    Attributes:
        turn: held during every call, as the interpreter's lock is; given up while waiting.
        owned_elsewhere: another library of this process initialised ACL and will finalise it.
        vnpu: the devices are parts of one, which lack some kinds of tasks.
        plans_ranges: whether memory for models with free shapes can be asked for and given.
        initialised, finalised: `init` was called and `finalize` was not; `finalize` was called.
        config: the JSON file that `init` was given.
        after_call: told the name of every call when it has ended.
        calls: how often each call was made.
        uploads, downloads: how many copies there were between host and device.
        uploaded_bytes, downloaded_bytes: by these.
        models: loaded models by id.
        executions: (model's name, input shapes) in the order in which they ran.
        runs: how many of them, by the model's name.
    """

    def __init__(
        self,
        *,
        devices: int,
        hbm_bytes: int,
        soc: str,
        times: Times,
        owned_elsewhere: bool,
        vnpu: bool,
        plans_ranges: bool,
    ) -> None:
        self.turn = threading.Condition()
        self.soc = soc
        self.times = times
        self.owned_elsewhere = owned_elsewhere
        self.vnpu = vnpu
        self.plans_ranges = plans_ranges
        self.initialised = owned_elsewhere
        self.finalised = False
        self.config = ""
        self.after_call: Callable[[str], None] = lambda _: None
        self.padding = padding_of(soc)
        self.misuses = Misuses()
        self.faults = Faults()
        self.handles = Handles(self.misuses)
        self.hazards = Hazards(self.misuses)
        cores = {0: SOCS[soc].cube_cores, 1: SOCS[soc].vector_cores}
        self.devices = [
            Device(index, DeviceMemory(index, hbm_bytes, self.padding, self.misuses), dict(cores))
            for index in range(devices)
        ]
        self.memory = Memory([device.memory for device in self.devices], self.misuses)
        self.calls: Counter[str] = Counter()
        self.uploads = self.downloads = 0
        self.uploaded_bytes = 0
        self.downloaded_bytes = 0
        self.models: dict[int, Any] = {}
        self.executions: list[tuple[str, dict[str, tuple[int, ...]]]] = []
        self.runs: Counter[str] = Counter()
        self._thread = threading.local()

    @property
    def current(self) -> Context | None:
        """The calling thread's context; None where it has none, or it is gone."""
        context = getattr(self._thread, "context", None)
        return context if context is not None and context.handle else None

    @current.setter
    def current(self, context: Context | None) -> None:
        self._thread.context = context

    def context(self) -> Context:
        """Return the calling thread's context.

        Raises:
            Refusal: it has none.
        """
        if self.current is None:
            raise Refusal(
                Code.RT_CONTEXT_NULL,
                "the current context is null: this thread called neither set_device nor set_context",
            )
        return self.current

    def device(self, index: int) -> Device:
        """Return a device by its number.

        Raises:
            Refusal: there is none.
        """
        if not 0 <= index < len(self.devices):
            raise Refusal(
                Code.RT_INVALID_DEVICE, f"device {index}: there are {len(self.devices)} devices"
            )
        return self.devices[index]

    def any_stream(self, handle: int) -> Stream:
        """Return a stream of any context, for waiting: only that switches contexts by itself.

        Source: CANN runtime src/runtime/api/impl/api_impl.cc.
        """
        context = self.context()
        return self.handles.get("stream", handle) if handle else context.default_stream

    def stream(self, handle: int) -> Stream:
        """Return a stream of the current context; 0 is its default stream.

        Raises:
            Refusal: it is another context's.
        """
        stream = self.any_stream(handle)
        if stream.context is not self.context():
            raise Refusal(Code.RT_STREAM_CONTEXT, "the stream is not in the current context")
        return stream

    def new_stream(self, context: Context) -> Stream:
        """Return a stream without a handle."""
        return Stream(context, self.turn, self.hazards, self.times)

    def keep_weights(self, name: str, access: Access) -> None:
        """Refuse whoever writes over the weights of a loaded model."""
        for model in self.models.values():
            for held in model.holds:
                if not held.writes and held.conflicts(access):
                    self.misuses.refuse(f"{name} overwrites {held.what} of {model}")

    def note_failure(self, code: int) -> None:
        """Keep a code of the runtime for the calling thread, until it is taken: success does not.

        Source: CANN runtime, GetRtExtErrCodeAndSetGlobalErr; aclrtGetLastError.
        """
        self._thread.last_error = code

    def take_failure(self) -> int:
        """Return the code that the calling thread's last failure in the runtime had, once."""
        code, self._thread.last_error = getattr(self._thread, "last_error", 0), 0
        return code

    @property
    def last_failure(self) -> int:
        """That code, which stays."""
        return getattr(self._thread, "last_error", 0)

    def set_message(self, text: str) -> None:
        """Keep the text of an error for the calling thread."""
        self._thread.message = text

    def take_message(self) -> str | None:
        """Return the calling thread's last error text, and forget it."""
        text, self._thread.message = getattr(self._thread, "message", None), None
        return text
