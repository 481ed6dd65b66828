"""An Ascend NPU as a device: `.om` through pyACL, `.onnx` compiled to such, torch beside them."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ge_backend.device.base import NO_POOL, Graph, GraphSource, MemoryInfo, Workspace
from ge_backend.device.engines import Engines
from ge_backend.device.health import Health
from ge_backend.device.imports import importing
from ge_backend.engines.acl.compiled import CompiledGraph
from ge_backend.engines.acl.copies import loaded_copies
from ge_backend.engines.acl.device import AclDevice
from ge_backend.engines.acl.load import load_om
from ge_backend.engines.acl.memory import Block, SharedWeights
from ge_backend.engines.acl.om_model import OmSource
from ge_backend.engines.atc.aipp import preprocessing_of
from ge_backend.engines.atc.cache import CompileCache
from ge_backend.engines.atc.compile import compile_onnx
from ge_backend.engines.atc.options import CompileRequest
from ge_backend.engines.ort.signature import read_onnx_signature
from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError, Unsupported
from ge_backend.model.config.model import MachineConfig
from ge_backend.model.config.settings import COMPILE_PREFIXES
from ge_backend.model.files.aipp_file import Block as AippBlock
from ge_backend.model.files.aipp_file import read_blocks
from ge_backend.model.files.om_files import read_order
from ge_backend.tensors import Shape

if TYPE_CHECKING:  # torch is imported when the first model of it is loaded
    from ge_backend.engines.torch.streams import Streams

__all__ = ["NpuDevice"]

LANES = 2
OPTIONS = "npu."
TIMEOUT_OPTION, PRIORITY_OPTION = "npu.timeout_s", "npu.priority"
AIPP_OPTION = "npu.aipp"
# What chips lack: the operator of torch's `index_copy_`, captured graphs, BF16.
# Source: CANN, product support of data types; hicann/ops-nn, aclnnInplaceIndexCopy; CANN runtime,
# aclmdlRICaptureBegin; names: torch_npu, csrc/core/npu/NpuVariables.cpp.
ROWS, CAPTURE, BF16 = "rows", "capture", "bf16"
LACKING = (
    (re.compile(r"Ascend310P"), {ROWS, BF16}),
    (re.compile(r"Ascend310B"), {ROWS, CAPTURE}),
    (re.compile(r"Ascend910(Pro|Premium)?[AB]?$"), {ROWS, CAPTURE, BF16}),
)
PRIORITIES = range(8)  # 0 goes first; source: aclmdlConfigAttr, ACL_MDL_PRIORITY_INT32
DEFAULT_TIMEOUT_S = 60.0


class NpuDevice:
    """One NPU.

    Two runs may be in flight, each on a stream of its own: while one computes, the other copies.
    They are of two models, unless each model is loaded as often.

    Args:
        acl: the module `acl`, or what behaves like it.
        index: which NPU, as this process sees them.
        lanes: how many runs may be in flight.
        copies: how many runs of one model may be, where there is no workspace pool.
        config: a JSON file for ACL; "" for none.

    Raises:
        DeviceUnavailable: there is no such NPU, or it cannot be taken.
    """

    def __init__(
        self, acl: Any, index: int = 0, *, lanes: int = LANES, copies: int = 1, config: str = ""
    ) -> None:
        self._index = index
        self._copies = copies
        self._device = AclDevice(acl, index, streams=lanes, config=config)
        self._weights = SharedWeights(self._device.runtime)
        self._pool: Block | None = None
        self._streams: Streams | None = None  # torch's
        self._engines: Engines[Streams] = Engines("npu")
        self._opening = threading.Lock()
        self.name = self._device.name
        self.chip = self._device.chip
        self.lanes = lanes

    @classmethod
    def open(cls, index: int, *, lanes: int = 0) -> NpuDevice:
        """Open an NPU of this machine.

        Where lanes are asked for, a single model can fill them all.

        Raises:
            DeviceUnavailable: CANN is not installed or not set up, or as above.
        """
        try:
            with importing():
                acl = importlib.import_module("acl")
        except ImportError as error:
            raise DeviceUnavailable(
                f"npu:{index} needs CANN's Python module 'acl', which cannot be imported "
                f"({error}); start the server in a shell that has run 'source <CANN>/set_env.sh', "
                "such as /usr/local/Ascend/ascend-toolkit/set_env.sh"
            ) from error
        config = MachineConfig.here().acl_config
        if config and not Path(config).is_file():
            raise DeviceUnavailable(f"npu:{index}: GE_ACL_CONFIG is {config!r}, which is no file")
        return cls(acl, index, lanes=lanes or LANES, copies=lanes or 1, config=config)

    def reserve(self, nbytes: int) -> int:
        """Set the pool aside in one block; see `Device.reserve`.

        Without a pool each graph has work memory of its own, which only its own files share.
        """
        if nbytes:
            with self._device.entered():
                self._pool = Block(self._device.runtime, nbytes, "the workspace pool")
        return nbytes

    def load(self, source: GraphSource, workspace: Workspace = NO_POOL) -> Graph:
        """Load a file; see `Device.load`."""
        path = Path(source.path)
        loaders = {
            ".om": self._load_om,
            ".onnx": self._load_onnx,
            ".pt2": self._load_torch,
            ".pt": self._load_torch,
            "config.json": self._load_torch,
        }
        loader = next((load for end, load in loaders.items() if path.name.endswith(end)), None)
        if loader is None:
            raise ModelError(f"{path}: the npu device runs {', '.join(loaders)}")
        if not path.is_file():
            raise ModelError(f"{path}: there is no such file")
        return loader(source, workspace)

    def torch_streams(self) -> Streams:
        """Return what all torch models share, text generators among them; see `TorchDevice`.

        Raises:
            Unsupported: the chip lacks an operator that a generator's cache is written by.
        """
        if ROWS in self._lacking():
            raise Unsupported(
                f"{self.name} is an {self._device.chip}, which lacks the operator that a cache is "
                "written by (aclnnInplaceIndexCopy); serve the model on `cpu`, or on another NPU"
            )
        return self._entered_torch()

    def memory(self) -> MemoryInfo:
        """Return the free and total memory of the NPU."""
        return self._device.memory()

    def health(self) -> Health:
        """Return how the NPU is; see `Monitored`."""
        return self._device.runtime.health(self._index)

    def close(self) -> None:
        """Give the NPU back; all graphs are closed."""
        if self._streams is not None:
            self._streams.vendor.synchronize()
            self._streams.vendor.give_back()
        self._device.settle()
        if self._pool is not None:
            self._pool.close()
        self._device.close()

    def _load_om(self, source: GraphSource, workspace: Workspace) -> Graph:
        _refuse_options(source, (OPTIONS,))
        if source.precision != "origin":
            raise ConfigError(
                f"parameter 'precision' is {source.precision!r}, and {Path(source.path).name} is "
                "compiled already; remove it, or compile the model for that precision"
            )
        path = Path(source.path)
        return self._load_file(path, source, workspace, read_order(path))

    def _load_onnx(self, source: GraphSource, workspace: Workspace) -> Graph:
        _refuse_options(source, (OPTIONS, *COMPILE_PREFIXES))
        path = Path(source.path)
        signature = read_onnx_signature(path)
        request = CompileRequest(
            model=path,
            inputs=signature.inputs,
            shapes=(),
            soc=self._device.chip,
            precision=source.precision,
            options=tuple(o for o in source.options if not o[0].startswith(OPTIONS)),
        )
        images = preprocessing_of(request)
        order = tuple(spec.name for spec in signature.inputs)

        def compiled(shapes: Sequence[Mapping[str, Shape]]) -> Graph:
            own = tuple(images.shapes(bucket) for bucket in shapes)
            machine = MachineConfig.here()
            folder = machine.cache_dir or Path(tempfile.gettempdir()) / f"ge-backend-{os.getuid()}"
            made = compile_onnx(replace(request, shapes=own), CompileCache(folder), self._quiet)
            return self._load_file(made.path, source, workspace, order)

        return CompiledGraph(path, images.signature(signature), compiled)

    def _load_file(
        self, path: Path, source: GraphSource, workspace: Workspace, order: tuple[str, ...]
    ) -> Graph:
        given = OmSource(
            device=self._device,
            path=path,
            workspace=workspace,
            pool=self._pool,
            weights=self._weights,
            timeout_ms=_timeout_ms(source),
            order=order,
            priority=_priority(source),
            aipp=_aipp(source),
        )
        # In a pool a graph has one place, in which one run fits.
        copies = 1 if self._pool is not None else self._copies
        return loaded_copies(lambda: load_om(given), copies)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Have nothing in flight on any stream of ours, torch's included."""
        with self._device.quiet(), contextlib.ExitStack() as held:
            if self._streams is not None:
                held.enter_context(self._streams.quiet())
            yield

    def _load_torch(self, source: GraphSource, workspace: Workspace) -> Graph:
        """Load a torch model; torch has its own memory, streams and scratch on the device."""
        workspace.place(0)
        _refuse_options(source, ("torch.",))
        if source.precision == "bf16" and BF16 in self._lacking():
            raise ConfigError(
                f"precision is 'bf16', which {self._device.chip} does not have; say 'fp16'"
            )
        return self._engines.load(source, self._entered_torch())

    def _lacking(self) -> set[str]:
        found = (lacks for chips, lacks in LACKING if chips.match(self._device.chip))
        return next(found, set())

    def _entered_torch(self) -> Streams:
        """Return torch's streams, opened with the first use; the thread has the device then."""
        with self._opening:
            if self._streams is None:
                lacking = self._lacking()
                self._streams = _open_torch(
                    self._index,
                    self._device.enter,
                    puts_rows=ROWS not in lacking,
                    captures=CAPTURE not in lacking,
                )
        self._streams.vendor.enter()
        return self._streams


def _open_torch(
    index: int, enter: Callable[[], None], *, puts_rows: bool, captures: bool
) -> Streams:
    try:
        with importing():
            from ge_backend.engines.torch.npu import open_npu
            from ge_backend.engines.torch.streams import Streams
    except ImportError as error:
        raise DeviceUnavailable(
            f"torch models on 'npu:{index}' need torch and torch_npu ({error}); "
            "pip install 'triton-ge-backend[npu]'"
        ) from error
    return Streams(open_npu(index, enter, puts_rows=puts_rows, captures=captures))


def _refuse_options(source: GraphSource, known: tuple[str, ...]) -> None:
    """Refuse options of engines that do not run this file."""
    for key, _ in source.options:
        ours = {TIMEOUT_OPTION, PRIORITY_OPTION, AIPP_OPTION}
        if not key.startswith(known) or (key.startswith(OPTIONS) and key not in ours):
            raise ConfigError(
                f"parameter {key!r} has no meaning for {Path(source.path).name} on an NPU; remove "
                f"it (known are {', '.join(sorted(ours))}, atc.<option> and ge.<option> for ONNX, "
                "torch.mode for torch)"
            )


def _timeout_ms(source: GraphSource) -> int:
    """Return how long a run may take before the device counts as failed."""
    text = dict(source.options).get(TIMEOUT_OPTION, str(DEFAULT_TIMEOUT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 2**31 / 1000:  # ACL takes milliseconds in 32 bits
        raise ConfigError(f"parameter {TIMEOUT_OPTION!r} is {text!r}; expected seconds above 0")
    return max(1, int(seconds * 1000))


def _priority(source: GraphSource) -> int:
    """Return which models' runs the device prefers."""
    text = dict(source.options).get(PRIORITY_OPTION, "0")
    if not text.isdecimal() or int(text) not in PRIORITIES:
        raise ConfigError(
            f"parameter {PRIORITY_OPTION!r} is {text!r}; expected 0, which goes first, to "
            f"{PRIORITIES[-1]}"
        )
    return int(text)


def _aipp(source: GraphSource) -> AippBlock | None:
    """Return what is done to a model's images, from the file beside it that an option names."""
    name = dict(source.options).get(AIPP_OPTION)
    if name is None:
        return None
    path = Path(source.path).parent / name
    blocks = read_blocks(path, "dynamic", AIPP_OPTION)
    if len(blocks) > 1:
        raise ConfigError(f"{path}: {len(blocks)} inputs; the parameters of one can be told")
    return blocks[0]
