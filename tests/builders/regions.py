"""Clients of both protocols, and system shared memory that they and a server have in common."""

import importlib
import os
import queue

import numpy as np
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, serialize_byte_tensor

from builders.null_models import comes_true


class Speaker:
    """A client of one protocol, and its classes."""

    def __init__(self, server, protocol):
        self.protocol = protocol
        self.triton = importlib.import_module(f"tritonclient.{protocol}")
        self.url = getattr(server, protocol)
        more = {"concurrency": 32} if protocol == "http" else {}
        self.client = self.triton.InferenceServerClient(self.url, **more)

    def input(self, name, array, place=None):
        """Return an input: sent along, or at a `(region, offset)` where it is written first."""
        item = self.triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        if place is None:
            item.set_data_from_numpy(array)
        else:
            region, offset = place
            item.set_shared_memory(region.name, region.write(array, offset), offset)
        return item

    def output(self, name, place=None):
        """Return an output: sent back, or written into `nbytes` at a `(region, offset, nbytes)`."""
        item = self.triton.InferRequestedOutput(name)
        if place is not None:
            region, offset, nbytes = place
            item.set_shared_memory(region.name, nbytes, offset)
        return item

    def shape(self, result, name):
        """Return the shape that a result states for an output, wherever that lies."""
        told = result.get_output(name)
        return list(told["shape"] if self.protocol == "http" else told.shape)

    def begin(self, model, inputs, outputs=None):
        """Send a request; return what waits for its result."""
        if self.protocol == "http":
            return self.client.async_infer(model, inputs, outputs=outputs).get_result
        return Answer(self.client, model, inputs, outputs=outputs).get

    def registered(self):
        """Return the names of the regions that the server knows."""
        if self.protocol == "http":
            return sorted(item["name"] for item in self.client.get_system_shared_memory_status())
        return sorted(self.client.get_system_shared_memory_status().regions)


class Answer:
    """A gRPC request in flight, which may be cancelled."""

    def __init__(self, client, model, inputs, **terms):
        self._done = queue.Queue()
        self.call = client.async_infer(
            model, inputs, lambda result, error: self._done.put(error or result), **terms
        )

    def get(self, timeout=60):
        """Wait for the answer; raise its error."""
        answer = self._done.get(timeout=timeout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def done(self):
        """Whether it has come."""
        return not self._done.empty()


class Region:
    """Shared memory that a server has been told of; made and written by tritonclient's helpers."""

    def __init__(self, client, name, nbytes):
        self.name, self.nbytes = name, nbytes
        self.key = f"/ge-test-{os.getpid()}-{name}"
        self._client = client
        self._handle = shm.create_shared_memory_region(name, self.key, nbytes, create_only=True)
        client.register_system_shared_memory(name, self.key, nbytes)

    def write(self, array, offset=0):
        """Write an array; return how many bytes it takes."""
        stored = serialize_byte_tensor(array) if array.dtype == np.object_ else array
        shm.set_shared_memory_region(self._handle, [stored], offset)
        return len(stored.item()) if array.dtype == np.object_ else array.nbytes

    def read(self, dtype, shape, offset=0):
        """Return a copy of what lies there: a view would keep the region from being closed."""
        return np.array(shm.get_contents_as_numpy(self._handle, dtype, list(shape), offset))

    def close(self):
        """Forget it, here and there; a request that has just been answered may still hold it."""
        assert comes_true(self._unregistered)
        shm.destroy_shared_memory_region(self._handle)
        assert self.key not in shm.mapped_shared_memory_regions()

    def _unregistered(self):
        try:
            self._client.unregister_system_shared_memory(self.name)
        except InferenceServerException as error:
            if "currently in use" in error.message():
                return False
            raise
        return True
