"""The engine behind a service of text generation: ours, on the executor's device, or vLLM."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ge_backend.device.machine.host_memory import give_back_freed
from ge_backend.errors import InvalidRequest, ModelError, Unsupported
from ge_backend.executor.server.services import ServiceContext
from ge_backend.model.config.model import MachineConfig
from ge_backend.model.config.settings import VLLM
from ge_backend.model.files.checkpoint import GENERATION
from ge_backend.serving.warmup.measure import fingerprint, processor_kind, release_of
from ge_backend.serving.warmup.store import Store
from ge_text.engine.cache_size import largest_step
from ge_text.engine.delegate import Delegate
from ge_text.engine.engine import Engine
from ge_text.engine.parameters import parse_parameters
from ge_text.engine.plan import StepShapes
from ge_text.engine.settings import EngineSettings, read_settings
from ge_text.engine.shapes import step_shapes
from ge_text.engine.warmup import prepare_kinds, prepared_shapes
from ge_text.models.adapter import StoredAdapter
from ge_text.models.adapter_folder import AdapterFolder, has_adapters
from ge_text.models.base import LanguageModel, Tokenizer
from ge_text.models.open import (
    OpenLanguage,
    OpenScheduled,
    TorchDevice,
    open_language,
    open_scheduled,
)
from ge_text.models.own_thread import OwnThread
from ge_text.models.scheduled import ScheduledModel
from ge_text.models.structure import Guide, Structure
from ge_text.protocol import ServiceSpec

__all__ = ["OpenedEngine", "kept_nearness", "open_engine"]

log = logging.getLogger(__name__)

PROGRESS_EVERY = 20
# Figures of another text, or of another way to make weights of eight bits, are not used.
MEASURE_VERSION = "nearness 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedEngine:
    """An engine, the models that it runs, and what stands beside the first in the checkpoint.

    Attributes:
        name: of what computes the steps.
        find_adapter: as `AdapterFolder.find`.
        special: names of the tokens that are no text, by token.
        scratch_bytes: of the largest step, where there is a pool for it; 0: not known.
        stream_interval: tokens that go to a client together, but for the first.
    """

    engine: Engine | Delegate
    name: str
    models: tuple[LanguageModel | ScheduledModel, ...]
    tokenizer: Tokenizer | None
    sampling: Mapping[str, float]
    compile_structure: Callable[[Structure], Guide | None] | None
    find_adapter: Callable[[str], StoredAdapter]
    special: Mapping[int, str]
    scratch_bytes: int = 0
    stream_interval: int = 1


def open_engine(spec: ServiceSpec, context: ServiceContext) -> OpenedEngine:
    """Load a checkpoint and make it ready; the models are the caller's to close.

    Raises:
        GeError: the checkpoint cannot be served as the specification says.
    """
    return (_delegate if spec.engine == VLLM else _own)(spec, context)


def _delegate(spec: ServiceSpec, context: ServiceContext) -> OpenedEngine:
    opened = open_scheduled(
        OpenScheduled(
            folder=Path(spec.folder),
            precision=spec.precision,
            served_as=spec.served_as,
            options=spec.settings,
            on_death=context.on_fault,
        )
    )
    return OpenedEngine(
        engine=Delegate(opened.model, time.monotonic),
        name=VLLM,
        models=(opened.model,),
        tokenizer=opened.tokenizer,
        sampling=_defaults(Path(spec.folder), opened.sampling),
        compile_structure=_left_to_vllm,
        find_adapter=_no_adapter,
        special=opened.tokenizer.special if opened.tokenizer else {},
    )


def _defaults(folder: Path, sampling: Mapping[str, float]) -> Mapping[str, float]:
    """Return a checkpoint's own defaults.

    Raises:
        ModelError: one of them is impossible, so that every request without it would be refused.
    """
    try:
        parse_parameters({}, defaults=sampling)
    except InvalidRequest as error:
        raise ModelError(f"{folder / GENERATION}: {error}") from error
    return sampling


def _left_to_vllm(structure: Structure) -> None:
    """Return no guide: the structure goes with the request, and vLLM compiles it."""
    del structure


def _no_adapter(name: str) -> StoredAdapter:
    raise Unsupported(f"lora_name {name!r} is not passed on to vLLM; take our own engine for it")


def _own(spec: ServiceSpec, context: ServiceContext) -> OpenedEngine:
    """Return our own engine; where it cannot be made ready, no model of it stays open."""
    with contextlib.ExitStack() as taken:
        opened = _opened(spec, context, taken)
        taken.pop_all()
        return opened


def _opened(
    spec: ServiceSpec, context: ServiceContext, taken: contextlib.ExitStack
) -> OpenedEngine:
    settings, beside = read_settings(spec.settings), Path(spec.home or spec.folder)
    device = context.device
    asked = OpenLanguage(
        device=device.name,
        folder=Path(spec.folder),
        precision=spec.precision,
        threads=spec.threads,
        block_size=settings.block_size,
        cache_dtype=settings.kv_cache_dtype,
        memory=device.memory,
        engine=spec.engine,
        padded=settings.bucketed,
        streams=device.torch_streams if isinstance(device, TorchDevice) else None,
        assumed=spec.assumed,
        kept=kept_nearness,
    )
    opener = OwnThread().open if device.name == "cpu" else open_language
    opened = opener(asked)
    taken.callback(opened.model.close)
    models = [opened.model]
    if settings.speculative_model is not None:
        draft = replace(asked, folder=settings.speculative_model, text=False)
        models.append(opener(draft).model)
        taken.callback(models[-1].close)
    reserved = settings.lora_bytes if has_adapters(beside) else 0
    engine = Engine(opened.model, settings, time.monotonic, *models[1:], reserved=reserved)
    if device.name == "cpu" and not settings.bucketed:
        for model in models:
            prepare_kinds(model)
    else:
        longest = engine.limits.max_length
        engine.use(*(_prepared(model, settings, longest, spec.served_as) for model in models))
    give_back_freed()  # reading a tokenizer and what compiles structures takes 58 MiB for a moment
    scratch_bytes = 0
    if context.pool.size_bytes:  # one of them runs at a time
        scratch_bytes = max(model.scratch_bytes(largest_step(model, settings)) for model in models)
    return OpenedEngine(
        engine=engine,
        name=opened.engine,
        models=tuple(models),
        tokenizer=opened.tokenizer,
        sampling=_defaults(Path(spec.folder), opened.sampling),
        compile_structure=opened.compile_structure,
        find_adapter=AdapterFolder(beside, opened.model.products, opened.model.dtype).find,
        special=opened.tokenizer.special if opened.tokenizer else {},
        scratch_bytes=scratch_bytes,
        stream_interval=settings.stream_interval,
    )


def _prepared(
    model: LanguageModel, settings: EngineSettings, longest: int, served_as: str
) -> StepShapes:
    """Make a model's buckets ready; without any, what a step needs is made at first use."""
    lists = step_shapes(settings, min(longest, model.max_positions), model.block_size)

    def progress(done: int, count: int) -> None:
        if done == count or not done % PROGRESS_EVERY:
            log.info("%s: %d of %d buckets are ready", served_as, done, count)

    return prepared_shapes(model, lists, time.monotonic, progress)


def kept_nearness(files: Sequence[Path], measure: Callable[[], float]) -> float:
    """Return the divergence that is kept for a checkpoint, in nats, or what is measured and kept.

    It is kept in `GE_CACHE_DIR`, by the content of the checkpoint's files, whatever their folder,
    by the release of OpenVINO and by the processor, which may have BF16 or not.
    """
    store = Store(MachineConfig.here().cache_dir)
    key = [*map(fingerprint, files), release_of("openvino"), processor_kind(), MEASURE_VERSION]
    kept = store.findings(key)
    if isinstance(kept, float):
        return kept
    figure = measure()
    store.keep_findings(key, figure)
    return figure
