"""What a model takes of its device: weights, buffers, and the scratch memory of a run."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ge_backend.device.base import open_device
from ge_backend.executor.protocol.messages import Prepared
from ge_backend.kinds import TEXT, kind_of
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.model_folder import read_folder
from ge_backend.model.config.placement import place
from ge_backend.model.config.settings import VLLM
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_backend.model.files.model_file import model_bytes
from ge_backend.model.layout.layout import Layout, TensorLayout
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.serving.warmup.verdict import Verdict
from ge_backend.serving.warmup.warmup import bucket_shapes, guessed_sizes, prepare_bucket
from ge_backend.shapes.buckets.grid import Bucket, largest_buckets
from ge_text.engine.cache_size import fitting_blocks
from ge_text.engine.settings import read_settings
from ge_text.models.adapter_folder import ITEM_BYTES, has_adapters
from ge_text.models.open import cache_bytes_per_token, cached_as, held_as, memory_for_cache
from ge_text.stub.opening import check_generation, draft_checkpoint, generation_settings
from ge_tools.model.offline import open_offline

__all__ = ["Demand", "measure_demand", "tensor_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One model, on each of its devices.

    Attributes:
        devices: where it runs.
        weights_bytes: of its files, which are little else than weights.
        io_bytes: inputs and outputs of its largest bucket, once per instance; None where they are
            only known when a request is there.
        workspace_bytes: scratch of one run in its largest bucket; 0 where that is not known.
        cache_bytes: of the keys and values of a model that generates text.
        run_ns: how long such a run takes.
        memory_bytes: of the device, in all.
        guessed: the sizes of free axes at which such a run was made, where only requests tell them.
        verdicts: what was tested of it.
    """

    model: str
    devices: tuple[str, ...]
    weights_bytes: int
    io_bytes: int | None
    workspace_bytes: int
    run_ns: int
    memory_bytes: int
    cache_bytes: int = 0
    guessed: Mapping[str, int] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()


def measure_demand(path: Path, *, device: str | None, cache_dir: Path | None) -> Demand:
    """Open the model of a folder, as `open_offline` does, and run its largest buckets once.

    Raises:
        GeError: the model would not load in a server either.
    """
    folder = read_folder(path)
    given = folder.config(os.environ)
    devices = given.placement.devices
    if device:  # by the name that a configuration would give it
        devices = place(device=device, device_ids="", forced="").devices
    if kind_of(given) is TEXT:
        return _of_text(given, devices)
    with open_offline(path, device=device, cache_dir=cache_dir) as model:
        prepared = _prepare_largest(model)
        tensors = [tensor_bytes(model.layout, bucket) for bucket in model.grid.entries]
        known = [nbytes for nbytes in tensors if nbytes is not None]
        return Demand(
            model=model.config.name,
            devices=devices,
            weights_bytes=model_bytes(Path(model.session.source.path)),
            io_bytes=max(known) * given.instances if len(known) == len(tensors) else None,
            workspace_bytes=max((one.workspace_bytes for one in prepared), default=0),
            run_ns=max((one.cost_ns for one in prepared), default=0),
            memory_bytes=model.session.inspect().total_bytes,
            guessed=guessed_sizes(model.layout),
            verdicts=model.verdicts,
        )


def _of_text(config: ModelConfig, devices: tuple[str, ...]) -> Demand:
    """Return what a checkpoint takes, by its headers: nothing is loaded and nothing run.

    Its cache is as large as the executor would make it on the device as it is now. vLLM chooses
    for itself, so with it only the weights are known.
    """
    check_generation(config)
    of_vllm = config.engine == VLLM
    checkpoint = read_checkpoint(config.directory, quantised=of_vllm)
    with contextlib.closing(open_device(devices[0])) as device:
        memory = device.memory()
    weights, cache = checkpoint.weight_bytes, 0
    if not of_vllm:
        draft = draft_checkpoint(config, checkpoint)
        held = [
            (one, held_as(one.dtype, config.precision, devices[0]))
            for one in filter(None, (checkpoint, draft))
        ]
        weights = sum(
            one.weight_bytes * ITEM_BYTES[dtype] // ITEM_BYTES[one.dtype] for one, dtype in held
        )
        settings = read_settings(generation_settings(config))
        each = settings.block_size * sum(
            cache_bytes_per_token(one, cached_as(dtype, settings.kv_cache_dtype))
            for one, dtype in held
        )
        longest = -(-checkpoint.max_positions // settings.block_size)
        left = memory_for_cache(max(0, memory.free_bytes - weights), devices[0])
        if has_adapters(config.directory):
            left = max(0, left - settings.lora_bytes)
        cache = each * fitting_blocks(settings, settings.kv_cache_bytes or left, each, longest)
    return Demand(
        model=config.name,
        devices=devices,
        weights_bytes=weights,
        io_bytes=None,
        workspace_bytes=0,
        run_ns=0,
        memory_bytes=memory.total_bytes,
        cache_bytes=cache,
    )


def _prepare_largest(model: ShapedModel) -> list[Prepared]:
    """Prepare the buckets that no other covers; where requests are concatenated there are none.

    What cannot run is left out, as at a load: a free axis that is not padded has a guessed size.
    """
    entries, layout = model.grid.entries, model.layout
    if layout.concatenated:
        return []
    if model.session.shape_policy.prepared:
        model.session.compile([bucket_shapes(bucket, layout) for bucket in entries])
    prepared = [
        prepare_bucket(model.session, layout, bucket, repeats=1)
        for bucket in largest_buckets(entries)
    ]
    return [one for one in prepared if one is not None]


def tensor_bytes(layout: Layout, bucket: Bucket) -> int | None:
    """Return the bytes of a bucket's inputs and outputs.

    None if some dimension is not padded, so that it differs between runs, or for BYTES tensors.
    """
    sizes = bucket[1:] + (-1,) * len(layout.equal_axes)
    batch = bucket[:1] if layout.batched else ()
    total = 0
    items: tuple[TensorLayout, ...] = (*layout.inputs, *layout.outputs)
    for item in items:
        shape = item.shape(batch, sizes)
        if -1 in shape or item.source or item.dtype.itemsize == 0:
            return None
        total += math.prod(shape) * item.dtype.itemsize
    return total
