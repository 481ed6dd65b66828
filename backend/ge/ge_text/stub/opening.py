"""Opening a model that generates text: a checkpoint folder, served by its device's executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ge_backend.device.preload import language_imports
from ge_backend.errors import ConfigError
from ge_backend.executor.client.served_files import ServedFiles
from ge_backend.metrics import Recorder
from ge_backend.model.config.engine_table import LANGUAGE_ENGINES
from ge_backend.model.config.inside import inside
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.settings import GENERATION_SETTINGS, VLLM
from ge_backend.model.files.checkpoint import Checkpoint, read_checkpoint
from ge_backend.model.files.model_file import stamp_of
from ge_backend.serving.connect import AUTO, executor_of, kept_files
from ge_text.engine.figures import HISTOGRAMS, HistogramFigures
from ge_text.engine.settings import read_settings
from ge_text.protocol import ServiceSpec, StatsReply
from ge_text.stub.client import GenerationClient

__all__ = ["check_generation", "draft_checkpoint", "generation_settings", "open_generation"]

BUCKETS = ("batch", "query", "context")
# Figures of an engine, and what they are as metrics; those with a label say which.
PREEMPTED = ("recomputed", "swapped_out", "swapped_in")
FINISHED = ("stop", "complete", "length", "cancelled", "error")


def open_generation(
    config: ModelConfig, recorder: Recorder, *, on_restart: Callable[[str], None]
) -> GenerationClient:
    """Load the checkpoint on the model's device, or share it with those who did.

    Args:
        config: the model's, complete.
        recorder: gets what is counted, whenever `GenerationClient.ask_stats` is called.
        on_restart: called with the device's name whenever its executor was found dead.

    Raises:
        GeError: the model cannot be served as configured.
    """
    check_generation(config)
    if (
        config.executor == "auto"
    ):  # its steps are made for all texts at once, and go on by themselves
        config = replace(config, executor="process")
    spec, own = (_vllm if config.engine == VLLM else _own)(config)
    engine = "torch" if config.engine == VLLM else spec.engine  # vLLM begins with torch
    folder = generation_settings(config)["speculative_model"]
    draft = _files_in(Path(folder)) if folder else None
    served = [own, draft] if draft else [own]

    def key() -> str:
        """Return what names the service, with the files where they are now."""
        guessing = {"speculative_model": str(draft.folder())} if draft else {}
        settings = {**spec.settings, **guessing}
        return replace(spec, folder=str(own.folder()), settings=settings).key()

    def close() -> None:
        for files in served:
            files.close()

    client = GenerationClient(
        executor_of(config, config.device, language_imports(config.device, engine)),
        key,
        on_restart=lambda: on_restart(config.device),
        on_stats=lambda stats: _record(stats, recorder, config.device),
        on_close=close,
    )
    for files in served:
        files.copy = kept_files(config, files)
    return client


def check_generation(config: ModelConfig) -> None:
    """See that a model that generates text may be configured so, whatever is installed.

    Raises:
        ConfigError: it may not.
    """
    if config.precision == "int8":
        _check_for_int8(config)
    if config.engine == VLLM:
        _check_for_vllm(config)
        return
    own = [row.name for row in LANGUAGE_ENGINES]
    if config.engine not in {"", AUTO, *own}:
        raise ConfigError(
            f"parameter 'engine' is {config.engine!r}; a model that generates text runs on "
            f"{', '.join(map(repr, own))} or {VLLM!r}"
        )
    theirs = [key for key, _ in config.options if key.startswith(f"{VLLM}.")]
    if theirs:
        raise ConfigError(f"parameter {theirs[0]!r} is for engine {VLLM!r}, which is not chosen")
    if len(config.placement.devices) > 1:
        raise ConfigError(
            f"device_ids name {len(config.placement.devices)} devices; a model that generates text "
            "runs on one: give each device a model of its own, or take engine 'vllm'"
        )
    read_settings(generation_settings(config))


def _check_for_int8(config: ModelConfig) -> None:
    kind = config.device.partition(":")[0]
    engine = "" if config.engine == AUTO else config.engine
    if kind == "cpu" and engine in ("", "openvino"):
        return
    then = "; for vLLM take a checkpoint that is quantised" if engine == VLLM else ""
    raise ConfigError(
        "parameter 'precision' is 'int8', which a text generator has on a CPU by engine "
        f"'openvino', not on {kind} by {engine or 'torch'!r}; take 'bf16'{then}"
    )


def _check_for_vllm(config: ModelConfig) -> None:
    if config.executor == "inline":
        raise ConfigError("parameter 'executor' is 'inline'; vLLM needs a process: remove it")
    given = [s.key for s in GENERATION_SETTINGS if config.generation[s.key] != s.default]
    given += [f"buckets.{axis}" for axis in config.buckets]
    if given:
        raise ConfigError(
            f"parameter {given[0]!r} is of no use with engine {VLLM!r}, which has arguments of its "
            f"own: give them as '{VLLM}.<argument>', named as for `vllm serve`"
        )


def _own(config: ModelConfig) -> tuple[ServiceSpec, ServedFiles]:
    draft = draft_checkpoint(config, read_checkpoint(config.directory))
    beside = [*(draft.files if draft else ()), *filter(None, [config.bucket_file])]
    engine = "" if config.engine == AUTO else config.engine
    return _served(config, generation_settings(config), beside, engine=engine)


def _vllm(config: ModelConfig) -> tuple[ServiceSpec, ServedFiles]:
    prefix = f"{VLLM}."
    settings = {k.removeprefix(prefix): v for k, v in config.options if k.startswith(prefix)}
    return _served(config, settings, engine=VLLM)


def _served(
    config: ModelConfig, settings: dict[str, str], beside: Sequence[Path] = (), engine: str = ""
) -> tuple[ServiceSpec, ServedFiles]:
    folder = config.directory.resolve()
    served = _files_in(folder, quantised=engine == VLLM)
    spec = ServiceSpec(
        folder=str(folder),
        home=str(folder),
        stamp=stamp_of([*served.files(), *beside]),
        precision=config.precision,
        threads=config.threads,
        priority=config.priority,
        served_as=config.name,
        settings=settings,
        engine=engine,
        assumed="precision" in config.assume,
    )
    return spec, served


def _files_in(folder: Path, *, quantised: bool = False) -> ServedFiles:
    def files() -> Sequence[Path]:
        return read_checkpoint(folder, quantised=quantised).files

    return ServedFiles(folder, files, stamp_of(files()))


def draft_checkpoint(config: ModelConfig, own: Checkpoint) -> Checkpoint | None:
    """Return the checkpoint that guesses tokens for a model's own one; None where none does.

    Raises:
        ConfigError: its vocabulary is another one.
        ModelError: it is no checkpoint that can be served.
    """
    folder = generation_settings(config)["speculative_model"]
    if not folder:
        return None
    draft = read_checkpoint(Path(folder))
    if draft.vocabulary != own.vocabulary:
        raise ConfigError(
            f"parameter 'speculative_model': {folder} has a vocabulary of {draft.vocabulary} "
            f"tokens and {own.folder} one of {own.vocabulary}; take a model with the same tokenizer"
        )
    return draft


def generation_settings(config: ModelConfig) -> dict[str, str]:
    """Return a model's settings of generation, as `generate.settings.read_settings` takes them.

    Raises:
        ConfigError: buckets of an axis are given that there is not, or a file lies elsewhere.
    """
    unknown = sorted(set(config.buckets) - set(BUCKETS))
    if unknown:
        raise ConfigError(
            f"parameter 'buckets.{unknown[0]}' is unknown for a model that generates text; known "
            f"are {', '.join(f'buckets.{axis}' for axis in BUCKETS)}"
        )
    draft = config.generation["speculative_model"].strip()
    if draft:
        draft = str(inside(config.directory.parent, draft, "parameter 'speculative_model'"))
    return {
        **config.generation,
        "speculative_model": draft,
        **{f"buckets.{axis}": sizes for axis, sizes in config.buckets.items()},
        "buckets": str(config.bucket_file or ""),
        "max_graphs": str(config.max_graphs),
    }


def _record(stats: StatsReply, recorder: Recorder, device: str) -> None:
    recorder.set("ge_engine_info", 1.0, device=device, engine=stats.engine)
    for name, level in stats.levels.items():
        recorder.set(f"ge_text_{name}", level)
    for name, count in stats.counts.items():
        if not count:
            continue
        if name in PREEMPTED:
            recorder.add("ge_text_preempted_total", count, how=name)
        elif name in FINISHED:
            recorder.add("ge_text_finished_total", count, reason=name)
        else:
            recorder.add(f"ge_text_{name}_total", count)
    for bucket, count in stats.buckets.items():
        recorder.add("ge_text_buckets_total", count, bucket=bucket)
    recorder.add("ge_run_seconds_total", stats.histograms["step"].total, device=device)
    for name, histogram in stats.histograms.items():
        recorder.observe(HISTOGRAMS[name], _observations(histogram))


def _observations(figures: HistogramFigures) -> Sequence[float]:
    """Return values that fall into the same buckets and have the same sum.

    Each lies at one and the same fraction of its bucket; above the last bound there is no bucket,
    and what is missing from the sum is made up for there.
    """
    lows = (0.0, *figures.bounds)
    highs = (*figures.bounds, figures.bounds[-1])
    least = sum(count * low for count, low in zip(figures.counts, lows, strict=True))
    spread = sum(c * (high - low) for c, low, high in zip(figures.counts, lows, highs, strict=True))
    part = min(1.0, max(0.0, (figures.total - least) / spread)) if spread > 0 else 1.0
    above = figures.counts[-1]
    rest = max(0.0, figures.total - least - part * spread) / above if above else 0.0
    values: list[float] = []
    for count, low, high in zip(figures.counts[:-1], lows, highs, strict=False):
        values += [low + part * (high - low)] * count
    return values + [figures.bounds[-1] * (1 + 1e-9) + rest] * above
