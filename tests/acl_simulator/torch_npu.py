"""torch_npu in the simulated process, as far as it touches ACL."""

import threading

from acl_simulator.codes import Code, CopyKind
from acl_simulator.simulator import Simulator

__all__ = ["TorchNpu"]

SIZE = 64


class TorchNpu:
    """Works on a stream of the device's primary context.

    It sets the device once per thread, notes that, and trusts from then on that the thread's context
    is still the primary one.
    Source: torch_npu, csrc/core/npu/NPUFunctions.cpp (SetDevice), _init/core/runtime_lifecycle.py.
    """

    def __init__(self, sim: Simulator) -> None:
        self._sim = sim
        self._thread = threading.local()
        code = sim.init()
        if code not in {0, Code.REPEAT_INITIALISE}:
            self._check("init", code)
        self._set_device()
        self._stream, code = sim.rt.create_stream()
        self._check("create_stream", code)
        self._host, self._memory = sim.rt.malloc_host(SIZE)[0], sim.rt.malloc(SIZE, 0)[0]

    def run(self) -> None:
        """Queue a copy, and wait for it, in whichever thread."""
        rt = self._sim.rt
        self._set_device()
        kind = CopyKind.HOST_TO_DEVICE
        code = rt.memcpy_async(self._memory, SIZE, self._host, SIZE, kind, self._stream)
        self._check("memcpy_async", code)
        self._check("synchronize_stream", rt.synchronize_stream(self._stream))

    def refuse(self, code: int) -> None:
        """Raise what an operator's refusal is told as: of no call of the runtime's own."""
        self._check("call aclnnFoo failed", code)

    def leave(self) -> None:
        """Do what its handler does when the process ends: wait, and destroy what it made."""
        rt = self._sim.rt
        self._check("synchronize_device", rt.synchronize_device())
        self._check("destroy_stream", rt.destroy_stream(self._stream))
        self._check("free", rt.free(self._memory))
        self._check("free_host", rt.free_host(self._host))

    def _set_device(self) -> None:
        if not getattr(self._thread, "is_set", False):
            self._check("set_device", self._sim.rt.set_device(0))
            self._thread.is_set = True

    def _check(self, call: str, code: int) -> None:
        """Raise an error with the last code of the thread, if it has one, in place of its own.

        Source: torch_npu, csrc/core/npu/NPUException.h (NPU_CHECK_ERROR_CHECK_UCE).
        """
        if code:
            told = self._sim.last_failure or code
            raise RuntimeError(f"NPU function error: {call}, error code is {told}")
