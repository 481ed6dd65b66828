"""A graph's weights on a file, so that they need no memory once OpenVINO has packed them.

OpenVINO packs weights at the first run, and reads the packed ones from then on; those that it was
given stay in memory for as long as the model does, unless they lie on a file. The file has no name:
no other process can change or shorten it, and it is gone when the model or the process is.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import openvino

from ge_backend.tensors import Array

__all__ = ["WeightsFile"]

log = logging.getLogger(__name__)

MIN_BYTES = 1 << 16


class WeightsFile:
    """Has the large constants of a graph, in place of memory; they are what they were.

    It has to live for as long as what is compiled of the graph. Where no file can be had, the graph
    stays as it is, and the log says why.

    Args:
        graph: whose constants of `MIN_BYTES` and more are replaced, in place.
        folder: of the file; None: that of temporary files (`TMPDIR`).
    """

    def __init__(self, graph: Any, folder: Path | None = None) -> None:
        self._pages: mmap.mmap | None = None
        constants = [node for node in graph.get_ops() if _is_large(node)]
        if not constants:
            return
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                places = [_append(file, constant) for constant in constants]
                # Private: OpenVINO's tensors are writable, and no write would reach the file.
                self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            log.warning("weights stay in memory: no file for them: %s", error)
            return
        for constant, place in zip(constants, places, strict=True):
            _replace(constant, self._pages, place)

    def drop_pages(self) -> None:
        """Take the weights out of this process's memory; what is read again comes from the file.

        To be called when a run has packed them. Any thread.
        """
        if self._pages is not None:
            self._pages.madvise(mmap.MADV_DONTNEED)


def _is_large(node: Any) -> bool:
    return bool(node.get_type_name() == "Constant" and node.get_byte_size() >= MIN_BYTES)


def _append(file: BinaryIO, constant: Any) -> int:
    """Write a constant's bytes behind what is there, on a page of their own; return where."""
    place = -(-file.tell() // mmap.PAGESIZE) * mmap.PAGESIZE
    file.seek(place)
    file.write(np.ascontiguousarray(constant.data).data.cast("B"))
    file.flush()
    return place


def _replace(constant: Any, pages: mmap.mmap, place: int) -> None:
    """Have a constant's readers read another one, which lies on the file."""
    found: Array = constant.data  # BF16 comes as numpy's FP16: the same bits
    shape = constant.get_output_shape(0)
    array = np.frombuffer(pages, found.dtype, found.size, place).reshape(shape)
    tensor = openvino.Tensor(array, list(shape), constant.get_element_type())
    on_file = openvino.op.Constant(tensor, shared_memory=True)
    on_file.set_friendly_name(constant.get_friendly_name())
    constant.output(0).replace(on_file.output(0))
