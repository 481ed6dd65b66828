"""`acl.mdl`: running a model, at once and on a stream."""

import contextlib
import math
from collections.abc import Iterator

from acl_simulator.calls.execution import Execution
from acl_simulator.codes import Code
from acl_simulator.machine.loader import Loader
from acl_simulator.machine.machine import Machine
from acl_simulator.refusals import Refusal

__all__ = ["ExecuteCalls"]

# `attr` of `set_exec_config_opt`, and what it is where nothing is said.
# Source: hicann/ge, aclmdlExecConfigAttr.
STREAM_SYNC_TIMEOUT, FOR_EVER = 0, -1
# Source: CANN runtime, src/runtime/core/src/common/errcode_manage.cc.
REASONS = {
    Code.AICORE_TIMEOUT: "aicore timeout",
    Code.AICORE_EXCEPTION: "aicore exception",
    Code.STREAM_SYNC_TIMEOUT: "stream sync timeout",
}


class ExecuteCalls:
    """One machine's execute calls."""

    def __init__(self, machine: Machine, loader: Loader) -> None:
        self._machine = machine
        self._loader = loader

    def execute(self, number: int, inputs: int, outputs: int) -> None:
        self._execute(number, inputs, outputs, math.inf)

    def _execute(self, number: int, inputs: int, outputs: int, patience_ms: float) -> None:
        machine = self._machine
        execution = self._execution(number, inputs, outputs, at_once=True)
        work = execution.work()
        machine.hazards.touch(work.name, *work.accesses)
        work.begin()
        if math.isinf(work.duration_ms) and math.isinf(patience_ms):
            machine.misuses.refuse(f"{work.name} hangs, and execute has no timeout")
        with self._dropped(execution.runs_by_v2):
            if work.duration_ms > patience_ms:
                raise Refusal(Code.STREAM_SYNC_TIMEOUT, f"{work.name} goes on")
            work.finish()

    def execute_async(self, number: int, inputs: int, outputs: int, stream: int) -> None:
        queue = self._machine.stream(stream)
        queue.submit(self._execution(number, inputs, outputs, at_once=False).work())

    def execute_v2(self, number: int, inputs: int, outputs: int, stream: int, config: int) -> None:
        """Do as `execute`: it is the synchronous one, with options, such as how long it may take."""
        self._machine.stream(stream)
        options = self._machine.handles.get("exec config", config).options if config else {}
        limit_ms = options.get(STREAM_SYNC_TIMEOUT, FOR_EVER)
        self._execute(
            number, inputs, outputs, math.inf if limit_ms == FOR_EVER else float(limit_ms)
        )

    @contextlib.contextmanager
    def _dropped(self, v2: bool) -> Iterator[None]:
        """What RuntimeV2 makes of a code of the runtime, once it has waited.

        Source: hicann/ge runtime/v2/utils/utils.cc (DoRtStreamSyncWithTimeout, GE_ASSERT_RT_OK),
        model_v2_executor.cc (ExecuteSync).
        """
        try:
            yield
        except Refusal as refusal:
            if not v2:
                raise
            self._machine.note_failure(refusal.code)
            reason = REASONS.get(refusal.code, "unknown")
            raise Refusal(
                Code.GE_FAILURE,
                "E19999: Inner Error! TraceBack (most recent call last): "
                f"rtStreamSynchronizeWithTimeout execution failed, reason={reason}; {refusal}",
            ) from None

    def _execution(self, number: int, inputs: int, outputs: int, *, at_once: bool) -> Execution:
        machine = self._machine
        context = machine.context()
        model = self._loader.find(number)
        if model.context is not context:
            raise Refusal(Code.RT_MODEL_CONTEXT, f"model {model} was loaded in another context")
        if model.asynchronous is at_once:
            raise Refusal(
                Code.GE_INTERNAL,
                f"{model} was run with and without a stream (InitModelStream: no mixed execution)",
            )
        model.asynchronous = not at_once
        datasets = [machine.handles.get("dataset", handle) for handle in (inputs, outputs)]
        return Execution(machine, model, *datasets, at_once=at_once)
