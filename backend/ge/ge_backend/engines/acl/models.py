"""`acl.mdl` and its descriptions of memory: typed, and every return code checked at once.

See `runtime.py` for the rules. What refers to tensors here are plain numbers: a description, a
dataset, a data buffer. A data buffer is only a note of an address and a size; it owns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge_backend.engines.acl.codes import FORMAT_ND, NOT_SUPPORTED, UNSUPPORTED_TASK, one_line
from ge_backend.engines.acl.runtime import AclRuntime
from ge_backend.errors import DeviceFault, GraphFailed
from ge_backend.tensors import Shape

__all__ = ["AclModels", "AippCall"]

AippCall = tuple[str, tuple[int | float, ...]]

# Gears belong to a model, not to one of its inputs.
ALL_INPUTS = -1
# What RuntimeV2 waits for when a run is made at once is a stream of its own.
# Source: hicann/ge api/acl/acl_model/model/model.cpp (aclmdlExecuteV2Impl).
NO_STREAM = 0
# How long a device may take to write 64 bytes, when it is asked whether it is there.
ANSWER_MS = 5000
# `attr` of `mdl.set_config_opt`, and the kind of load that we do by it.
# Source: hicann/ge docs, aclmdlConfigAttr.
PRIORITY, LOAD_TYPE, PATH = 0, 1, 2
WEIGHT_ADDRESS, WEIGHT_SIZE, WORK_ADDRESS, WORK_SIZE = 5, 6, 7, 8
FROM_FILE, FROM_FILE_WITH_MEMORY = 1, 2
# `attr` of `mdl.set_exec_config_opt`. Source: hicann/ge docs, aclmdlExecConfigAttr.
STREAM_SYNC_TIMEOUT = 0


class AclModels:
    """Loading, describing and running models; errors as in `AclRuntime`.

    Args:
        acl: the module, or what behaves like it.
        runtime: checks the return codes.
    """

    def __init__(self, acl: Any, runtime: AclRuntime) -> None:
        self._acl = acl
        self._mdl = acl.mdl
        self._runtime = runtime
        self._check = runtime.check
        self._note = runtime.note

    # Models.

    def sizes(self, path: str) -> tuple[int, int]:
        """Return the bytes of work memory and of weights; work is 0 where it cannot be planned."""
        work, weights, code = self._mdl.query_size(path)
        self._check("mdl.query_size", code)
        return int(work), int(weights)

    def load(
        self,
        path: str,
        *,
        work: int,
        work_bytes: int,
        weights: int,
        weight_bytes: int,
        priority: int = 0,
    ) -> int:
        """Load a file into given memory and return its id; at address 0 it takes its own.

        `work` and `weights` are addresses, the caller's to free. `priority` is that of its runs on
        the device, 0 (the first) to 7.
        """
        if priority:
            options: list[tuple[int, int | str]] = [
                (PRIORITY, priority),
                (LOAD_TYPE, FROM_FILE_WITH_MEMORY),
                (PATH, path),
            ]
            if work:
                options += [(WORK_ADDRESS, int(work)), (WORK_SIZE, int(work_bytes))]
            if weights:
                options += [(WEIGHT_ADDRESS, int(weights)), (WEIGHT_SIZE, int(weight_bytes))]
            return self._load_by(options)
        model, code = self._mdl.load_from_file_with_mem(
            path, int(work), int(work_bytes), int(weights), int(weight_bytes)
        )
        self._check_load("mdl.load_from_file_with_mem", code)
        return int(model)

    def _load_by(self, options: Sequence[tuple[int, int | str]]) -> int:
        """Load what a configuration of ACL's says; it is not needed afterwards."""
        config = self._made("mdl.create_config_handle", self._mdl.create_config_handle())
        try:
            for attribute, value in options:
                code = self._mdl.set_config_opt(config, attribute, value)
                self._check("mdl.set_config_opt", code)
            model, code = self._mdl.load_with_config(config)
            self._check_load("mdl.load_with_config", code)
            return int(model)
        finally:
            self._note("mdl.destroy_config_handle", self._mdl.destroy_config_handle(config))

    def load_alone(self, path: str, *, priority: int = 0) -> int:
        """Load a file that takes all its memory itself, and return its id; `priority` as above."""
        if priority:
            return self._load_by([(PRIORITY, priority), (LOAD_TYPE, FROM_FILE), (PATH, path)])
        model, code = self._mdl.load_from_file(path)
        self._check_load("mdl.load_from_file", code)
        return int(model)

    def unload(self, model: int) -> None:
        """Unload a model of which no run is in flight."""
        self._note("mdl.unload", self._mdl.unload(int(model)))

    def submit(self, model: int, inputs: int, outputs: int, stream: int) -> None:
        """Queue a run; the model and both datasets are in use until the stream was waited for."""
        self._runtime.take_last_error()
        code = self._mdl.execute_async(int(model), int(inputs), int(outputs), int(stream))
        self._check("mdl.execute_async", code, cause=True)

    def execute(self, model: int, inputs: int, outputs: int, limit: int) -> None:
        """Run at once, within a limit, while every other Python thread waits.

        Outputs whose data buffer has no address get one, which is the caller's to free.

        Raises:
            DeviceFault: as all calls; or it took longer, and goes on.
        """
        self._runtime.take_last_error()
        if limit:
            code = self._mdl.execute_v2(int(model), int(inputs), int(outputs), NO_STREAM, limit)
            self._check("mdl.execute_v2", code, cause=True)
            return
        code = self._mdl.execute(int(model), int(inputs), int(outputs))
        self._check("mdl.execute", code, cause=True)

    def limit(self, timeout_ms: int) -> int:
        """Return how long `execute` may take, for it; 0 where CANN takes no limit.

        Pair with `forget_limit`.
        """
        if not hasattr(self._mdl, "execute_v2"):
            return 0
        limit = self._made("mdl.create_exec_config_handle", self._mdl.create_exec_config_handle())
        try:
            code = self._mdl.set_exec_config_opt(limit, STREAM_SYNC_TIMEOUT, int(timeout_ms))
            self._check("mdl.set_exec_config_opt", code)
        except BaseException:
            self.forget_limit(limit)
            raise
        return limit

    def forget_limit(self, limit: int) -> None:
        """Destroy a limit."""
        if limit:
            self._note(
                "mdl.destroy_exec_config_handle", self._mdl.destroy_exec_config_handle(limit)
            )

    # Descriptions.

    def describe(self, model: int) -> int:
        """Return a description of a loaded model; pair with `forget`."""
        description = self._made("mdl.create_desc", self._mdl.create_desc())
        try:
            self._check("mdl.get_desc", self._mdl.get_desc(description, int(model)))
        except BaseException:
            self.forget(description)
            raise
        return description

    def forget(self, description: int) -> None:
        """Destroy a description."""
        self._note("mdl.destroy_desc", self._mdl.destroy_desc(int(description)))

    def input_names(self, description: int) -> list[str]:
        """Return the inputs' names; a model with gears has one more input to choose them."""
        count = self._mdl.get_num_inputs(description)
        return [self._mdl.get_input_name_by_index(description, at) for at in range(count)]

    def output_names(self, description: int) -> list[str]:
        """Return the outputs' names, as the compiler wrote them."""
        count = self._mdl.get_num_outputs(description)
        return [self._mdl.get_output_name_by_index(description, at) for at in range(count)]

    def input_type(self, description: int, at: int) -> int:
        """Return ACL's number of an input's type."""
        return int(self._mdl.get_input_data_type(description, at))

    def output_type(self, description: int, at: int) -> int:
        """Return ACL's number of an output's type."""
        return int(self._mdl.get_output_data_type(description, at))

    def input_bytes(self, description: int, at: int) -> int:
        """Return the bytes of an input, in its largest gear; 0 if not known."""
        return int(self._mdl.get_input_size_by_index(description, at))

    def output_bytes(self, description: int, at: int) -> int:
        """Return the bytes of an output, in its largest gear; 0 if not known."""
        return int(self._mdl.get_output_size_by_index(description, at))

    def input_dims(self, description: int, at: int) -> Shape:
        """Return an input's dims, -1 where they vary.

        By the second version of the call: only its dims agree with the bytes where a file
        preprocesses images (AIPP).
        """
        dims, code = self._mdl.get_input_dims_v2(description, at)
        self._check("mdl.get_input_dims_v2", code)
        return _shape(dims)

    def input_limits(self, description: int, at: int) -> Shape:
        """Return the largest size of each dimension of an input; -1 where there is no limit.

        Nothing is known of any before CANN 8.3, whose pyACL is the first that lists this call.
        """
        if not hasattr(self._mdl, "get_input_dims_range"):
            return ()
        ranges, code = self._mdl.get_input_dims_range(description, at)
        self._check("mdl.get_input_dims_range", code)
        return tuple(int(most) for _, most in ranges["range"][: ranges["rangeCount"]])

    def output_dims(self, description: int, at: int) -> Shape:
        """Return an output's dims, in the largest gear; -1 where they vary freely."""
        dims, code = self._mdl.get_output_dims(description, at)
        self._check("mdl.get_output_dims", code)
        return _shape(dims)

    def current_output_dims(self, description: int, at: int) -> Shape:
        """Return an output's dims in the gear that was chosen last."""
        dims, code = self._mdl.get_cur_output_dims(description, at)
        self._check("mdl.get_cur_output_dims", code)
        return _shape(dims)

    def manages_work_memory(self, description: int) -> bool:
        """Whether RuntimeV2 runs a loaded model, which takes work memory as it runs.

        It does so whatever the shapes where an operator inside gives results of any size; of gears
        it knows nothing. Source: hicann/ge api/acl/acl_model/model/model.cpp,
        aclmdlGetCurOutputDimsImpl.
        """
        _, code = self._mdl.get_cur_output_dims(description, 0)
        return int(code) == NOT_SUPPORTED

    # Gears.

    def batch_gears(self, description: int) -> list[int]:
        """Return the batch sizes that a model was compiled for; none if it is of another kind."""
        gears, code = self._mdl.get_dynamic_batch(description)
        self._check("mdl.get_dynamic_batch", code)
        return [int(batch) for batch in gears["batch"][: gears["batchCount"]]]

    def image_gears(self, description: int) -> list[Shape]:
        """Return the (height, width) that a model was compiled for; none if of another kind."""
        gears, code = self._mdl.get_dynamic_hw(description, ALL_INPUTS)
        self._check("mdl.get_dynamic_hw", code)
        return [(int(height), int(width)) for height, width in gears["hw"][: gears["hwCount"]]]

    def dims_gears(self, description: int) -> list[Shape]:
        """Return per gear the dims of all inputs, one behind the other; none if of another kind."""
        count, code = self._mdl.get_input_dynamic_gear_count(description, ALL_INPUTS)
        self._check("mdl.get_input_dynamic_gear_count", code)
        if not count:
            return []
        gears, code = self._mdl.get_input_dynamic_dims(description, ALL_INPUTS, int(count))
        self._check("mdl.get_input_dynamic_dims", code)  # before the list is looked at: see facts
        return [_shape(gear) for gear in gears]

    def choose_batch(self, model: int, inputs: int, at: int, batch: int) -> None:
        """Choose a batch size; copies at once, so the model's last run must be over."""
        code = self._mdl.set_dynamic_batch_size(int(model), int(inputs), int(at), int(batch))
        self._check("mdl.set_dynamic_batch_size", code)

    def choose_image(self, model: int, inputs: int, at: int, size: Shape) -> None:
        """Choose a (height, width); as `choose_batch`."""
        height, width = map(int, size)
        code = self._mdl.set_dynamic_hw_size(int(model), int(inputs), int(at), height, width)
        self._check("mdl.set_dynamic_hw_size", code)

    def choose_dims(self, model: int, inputs: int, at: int, dims: Shape) -> None:
        """Choose the dims of all inputs, one behind the other; as `choose_batch`."""
        gear = {"name": "", "dimCount": len(dims), "dims": [int(dim) for dim in dims]}
        code = self._mdl.set_input_dynamic_dims(int(model), int(inputs), int(at), gear)
        self._check("mdl.set_input_dynamic_dims", code)

    def set_aipp(
        self, model: int, inputs: int, at: int, calls: Sequence[AippCall], rows: int
    ) -> None:
        """Set what is done to images of all later runs; copies at once, as `choose_batch`.

        The dataset's buffer `at` takes the parameters. `calls` are names in `acl.mdl`, with all
        arguments but the first; `rows` are the most images of a run.
        """
        aipp = self._made("mdl.create_aipp", self._mdl.create_aipp(int(rows)))
        try:
            for name, arguments in calls:
                self._check(f"mdl.{name}", getattr(self._mdl, name)(aipp, *arguments))
            code = self._mdl.set_input_aipp(int(model), int(inputs), int(at), aipp)
            self._check("mdl.set_input_aipp", code)
        finally:
            self._note("mdl.destroy_aipp", self._mdl.destroy_aipp(aipp))

    # Datasets.

    def dataset(self, buffers: Sequence[tuple[int, int]]) -> int:
        """Return a dataset of these (address, bytes), in order; pair with `close_dataset`."""
        dataset = self._made("mdl.create_dataset", self._mdl.create_dataset())
        try:
            for address, nbytes in buffers:
                self._add(dataset, address, nbytes)
        except BaseException:
            self.close_dataset(dataset)
            raise
        return dataset

    def close_dataset(self, dataset: int) -> None:
        """Destroy a dataset and its data buffers, not the memory that they name."""
        count = self._mdl.get_dataset_num_buffers(dataset)
        buffers = [self._mdl.get_dataset_buffer(dataset, at) for at in range(count)]
        self._note("mdl.destroy_dataset", self._mdl.destroy_dataset(dataset))
        for buffer in buffers:
            self._note("destroy_data_buffer", self._acl.destroy_data_buffer(buffer))

    def place(self, dataset: int, at: int, address: int, nbytes: int) -> None:
        """Let a dataset's buffer name other memory."""
        buffer = self._mdl.get_dataset_buffer(dataset, at)
        self._check(
            "update_data_buffer", self._acl.update_data_buffer(buffer, int(address), int(nbytes))
        )

    def placed(self, dataset: int, at: int) -> int:
        """Return the address that a dataset's buffer names."""
        buffer = self._mdl.get_dataset_buffer(dataset, at)
        return int(self._acl.get_data_buffer_addr(buffer))

    def state_shape(self, dataset: int, at: int, number: int, shape: Shape) -> None:
        """Say the shape of an input of a model without gears; `number` is ACL's of its type."""
        tensor = self._made(
            "create_tensor_desc",
            self._acl.create_tensor_desc(number, [int(dim) for dim in shape], FORMAT_ND),
        )
        try:
            _, code = self._mdl.set_dataset_tensor_desc(dataset, tensor, at)
            self._check("mdl.set_dataset_tensor_desc", code)
        finally:
            self._acl.destroy_tensor_desc(tensor)  # the dataset has a copy

    def stated_shape(self, dataset: int, at: int) -> Shape:
        """Return the shape that a run gave to an output of a model without gears."""
        tensor = self._made(
            "mdl.get_dataset_tensor_desc", self._mdl.get_dataset_tensor_desc(dataset, at)
        )
        shape = []
        for dim in range(self._acl.get_tensor_desc_num_dims(tensor)):
            size, code = self._acl.get_tensor_desc_dim_v2(tensor, dim)
            self._check("get_tensor_desc_dim_v2", code)
            shape.append(int(size))
        return tuple(shape)

    def _check_load(self, call: str, code: int) -> None:
        """Raise what a return code of loading says.

        Codes that mean a lost device elsewhere may be about the file here: the device is asked.
        """
        try:
            self._check(call, code)
        except DeviceFault as fault:
            if code == UNSUPPORTED_TASK:
                raise GraphFailed(
                    f"{fault}; if this device is a vNPU, it does not run all that a whole one does"
                ) from fault
            if self._runtime.answers(ANSWER_MS):
                raise GraphFailed(f"{fault}; the device itself answers") from fault
            raise

    def _add(self, dataset: int, address: int, nbytes: int) -> None:
        buffer = self._made(
            "create_data_buffer", self._acl.create_data_buffer(int(address), int(nbytes))
        )
        try:
            _, code = self._mdl.add_dataset_buffer(dataset, buffer)
            self._check("mdl.add_dataset_buffer", code)
        except BaseException:
            self._note("destroy_data_buffer", self._acl.destroy_data_buffer(buffer))
            raise

    def _made(self, call: str, handle: int) -> int:
        """Return a handle; calls that return nothing else return 0 when they fail."""
        if not handle:
            message = one_line(self._acl.get_recent_err_msg() or "CANN says no more about it")
            raise GraphFailed(f"acl.{call} returned nothing: {message}")
        return int(handle)


def _shape(dims: Any) -> Shape:
    return tuple(int(dim) for dim in dims["dims"][: dims["dimCount"]])
