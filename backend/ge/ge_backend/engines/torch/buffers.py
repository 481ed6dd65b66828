"""Device buffers of an accelerator as torch has it, and how a run's tensors are copied to and from.

All programs of a device compute in one stream, so a run that takes what another one has left in a
buffer needs to wait for nothing. Rows of equal size are picked and put by one operator each, for
which the device is told their numbers; a device without that operator puts one row after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from ge_backend.device.resident.buffers import Bound, BoundTensor, Copy, DeviceBuffer, merged
from ge_backend.engines.torch.streams import Streams
from ge_backend.engines.torch.vendor import Vendor
from ge_backend.errors import ProtocolError
from ge_backend.tensors import Array, DataType

__all__ = ["BoundCopies", "RowNumbers", "TorchMemory", "places"]

Tensors = Mapping[str, torch.Tensor]
INDEX = torch.int64
# Rows are picked and put as these, whatever they are: torch puts no UINT16, 32 or 64, and an NPU's
# AI Core puts no types of 8 bits and no INT16, which its AI CPU does, slowly. So those of narrower
# types go as INT32 where their bytes allow it.
# Source: pytorch 2.11, aten/src/ATen/native/cuda/IndexKernel.cu, index_copy_kernel; hicann/ops-nn,
# index/scatter_update (FP32, FP16, BF16, INT32, INT64).
_BY_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WHOLE = torch.int32


class TorchMemory:
    """An accelerator's memory; see `BufferMemory`.

    Args:
        errors: makes ours of the engine's errors.
    """

    name = "torch"
    alignment = 1

    def __init__(
        self, streams: Streams, errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._streams = streams
        self._errors = errors

    def allocate(self, nbytes: int, what: str) -> DeviceBuffer:
        """Return a buffer; see `BufferMemory`."""
        del what  # torch's own error says enough
        with self._errors(), self._streams.computing():
            return _TorchBuffer(self._streams.vendor.empty(nbytes))

    def upload(self, buffer: DeviceBuffer, content: Array) -> None:
        """Copy from the host; see `BufferMemory`."""
        vendor = self._streams.vendor
        with self._errors(), self._streams.computing():
            pinned = vendor.pinned(content.nbytes)
            pinned.copy_(torch.from_numpy(content))
            vendor.copy(_block(buffer)[: content.nbytes], pinned)
            vendor.synchronize()


class _TorchBuffer:
    """Device memory; see `DeviceBuffer`. Queued work holds the block itself."""

    def __init__(self, block: torch.Tensor) -> None:
        self.nbytes = block.numel()
        self.block: torch.Tensor | None = block

    def close(self) -> None:
        """Let it go; see `DeviceBuffer`."""
        self.block = None


class RowNumbers:
    """Numbers of rows on the device, for one run at a time, at most as many as it has room for."""

    def __init__(self, vendor: Vendor, room: int) -> None:
        self.room = room
        self._vendor = vendor
        self._sent = vendor.pinned(room * INDEX.itemsize).view(INDEX)
        self._there = vendor.empty(room * INDEX.itemsize).view(INDEX)

    def upload(self, numbers: Sequence[int]) -> torch.Tensor:
        """Queue their copy in the current stream, which has done the one before; INT64 `[n]`."""
        self._sent[: len(numbers)] = torch.tensor(numbers, dtype=INDEX)
        self._vendor.copy(self._there[: len(numbers)], self._sent[: len(numbers)])
        return self._there[: len(numbers)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a buffer, `[rows, width]`, by their numbers."""

    table: torch.Tensor
    numbers: torch.Tensor


class BoundCopies:
    """The copies of one run between buffers and tensors; made by the thread that computes.

    Args:
        bound: what is copied.
        numbers: no other run's until the stream has done this one.
    """

    def __init__(self, vendor: Vendor, bound: Bound, numbers: RowNumbers) -> None:
        self._vendor = vendor
        self._bound = bound
        self._numbers = numbers
        self._put: Sequence[_Rows | None] = ()  # of the outputs, in order

    @classmethod
    def alone(cls, vendor: Vendor, bound: Bound) -> BoundCopies:
        """Return those of a run that has no fixed place; memory for the numbers is allocated."""
        items = (*bound.inputs.values(), *bound.outputs.values())
        return cls(vendor, bound, RowNumbers(vendor, sum(len(item.copies) for item in items)))

    def gather(self, given: Tensors) -> None:
        """Queue the making of the inputs in these places; comes before `scatter`."""
        inputs, rows = self._bound.inputs, self._announced()
        self._put = rows[len(inputs) :]
        for (name, item), picked in zip(inputs.items(), rows, strict=False):
            place = given[name].view(-1)
            if picked is not None:
                place = place.view(picked.table.dtype).view(len(picked.numbers), -1)
                self._vendor.pick(place, picked.table, picked.numbers)
                continue
            if item.fill >= 0:
                self._vendor.fill(place.view(torch.uint8), item.fill)
            for copy in merged(item.copies):
                self._vendor.copy(_part(place, copy), _there(copy))

    def scatter(self, results: Tensors) -> None:
        """Queue the copies of the outputs, which are among these.

        Raises:
            GraphFailed: one is not as it was to be; then none is copied.
        """
        if not self._bound.outputs:
            return
        self._bound.check({name: tuple(result.shape) for name, result in results.items()})
        for (name, item), put in zip(self._bound.outputs.items(), self._put, strict=True):
            # In a lower precision a result may come in that; it is kept as declared.
            result = results[name].to(_kind(item.dtype)).contiguous().view(-1)
            if put is not None:
                rows = _as(result, put.table.dtype).view(-1, put.table.shape[1])
                rows = rows[: len(put.numbers)]
                self._vendor.put(put.table, put.numbers, rows)
                continue
            for copy in merged(item.copies):
                self._vendor.copy(_there(copy), _part(result, copy))

    def _announced(self) -> list[_Rows | None]:
        """Tell the device which rows are picked and put, all in one copy."""
        inputs, outputs = self._bound.inputs.values(), self._bound.outputs.values()
        items = (*inputs, *outputs)
        numbers = [_row_numbers(item.copies) for item in inputs]
        put = self._vendor.puts_rows
        numbers += [_row_numbers(item.copies) if put else () for item in outputs]
        if not 0 < sum(map(len, numbers)) <= self._numbers.room:  # rows that are cut have more
            return [None for _ in items]
        there = self._numbers.upload(list(itertools.chain.from_iterable(numbers)))
        parts = there.split([len(some) for some in numbers])
        return [
            _Rows(_table(item), part) if len(part) else None
            for item, part in zip(items, parts, strict=True)
        ]


def places(vendor: Vendor, items: Mapping[str, BoundTensor]) -> dict[str, torch.Tensor]:
    """Return tensors for bound inputs or outputs, of arbitrary content."""
    return {
        name: vendor.empty(item.nbytes).view(_kind(item.dtype)).view(item.shape)
        for name, item in items.items()
    }


def _row_numbers(copies: Sequence[Copy]) -> tuple[int, ...]:
    """Return which rows of a buffer the copies are; none where one copy does, or they are not."""
    if len(list(merged(copies))) <= 1:
        return ()
    buffer, size = copies[0].buffer, copies[0].nbytes
    whole = all(
        copy.buffer is buffer
        and (copy.nbytes, copy.offset, copy.place % size) == (size, row * size, 0)
        for row, copy in enumerate(copies)
    )
    return tuple(copy.place // size for copy in copies) if whole else ()


def _table(item: BoundTensor) -> torch.Tensor:
    """Return a buffer as rows of the size that is copied."""
    block, size = _block(item.copies[0].buffer), item.copies[0].nbytes
    whole = block[: block.numel() // size * size]
    kind = _BY_SIZE[item.dtype.itemsize]
    if kind.itemsize < _WHOLE.itemsize and size % _WHOLE.itemsize == 0:
        kind = _WHOLE
    return whole.view(kind).view(-1, size // kind.itemsize)


def _as(flat: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Return a flat tensor's bytes as another type, copied where they begin between two of it."""
    if flat.storage_offset() * flat.element_size() % kind.itemsize:
        flat = flat.clone()
    return flat.view(kind)


def _part(tensor: torch.Tensor, copy: Copy) -> torch.Tensor:
    """Return what of a contiguous tensor a copy is about, as bytes."""
    return tensor.view(torch.uint8)[copy.offset : copy.offset + copy.nbytes]


def _there(copy: Copy) -> torch.Tensor:
    return _block(copy.buffer)[copy.place : copy.place + copy.nbytes]


def _kind(dtype: DataType) -> torch.dtype:
    kind: torch.dtype = getattr(torch, dtype.torch)
    return kind


def _block(buffer: DeviceBuffer) -> torch.Tensor:
    if not isinstance(buffer, _TorchBuffer) or buffer.block is None:
        raise ProtocolError("a tensor that another engine keeps cannot be given to this model")
    return buffer.block
