"""The limits of one engine, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ge_backend.errors import ConfigError
from ge_backend.model.config.sizes import parse_bytes

__all__ = [
    "MAX_DRAFTS",
    "EngineSettings",
    "PreemptionMode",
    "Scheduling",
    "SpeculationMode",
    "read_settings",
]

MEASURED_LENGTHS = (1, 3, 7, 15)
MAX_DRAFTS = MEASURED_LENGTHS[-1]  # a row with more is computed like a piece of a prompt


class Scheduling(Enum):
    """The order of those that wait: who came first, who is shortest, or who matters most."""

    FCFS = "fcfs"
    SJF = "sjf"
    PRIORITY = "priority"


class PreemptionMode(Enum):
    """What becomes of the cache of a sequence that has to make room."""

    RECOMPUTE = "recompute"
    SWAP = "swap"
    AUTO = "auto"


class SpeculationMode(Enum):
    """What guesses tokens ahead, if anything does: the text itself, or a second model."""

    OFF = "off"
    NGRAM = "ngram"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How much at once, in which order, and what when it is too much.

    What `config.settings.GENERATION_SETTINGS` has is said there; `auto` is 0 here.

    Attributes:
        prefill_chunk: see `ChunkController`.
        aging_s: waiting that makes up for one level of priority, or for 1,000 tokens with sjf.
        batch_buckets, query_buckets, context_buckets: sizes as text, see `parse_axis`; all empty:
            steps have their own shapes. Context is counted in blocks.
        bucket_file: lists whole buckets in place of these.
        max_graphs: buckets at most; 0: no limit.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 64
    prefill_chunk: int = 0
    itl_target_ms: float = 100.0
    block_size: int = 32
    kv_cache_bytes: int = 0
    kv_cache_dtype: str = "model"
    stream_interval: int = 1
    scheduling: Scheduling = Scheduling.FCFS
    aging_s: float = 10.0
    max_waiting_requests: int = 1024
    preemption: PreemptionMode = PreemptionMode.RECOMPUTE
    swap_bytes: int = 0
    prefix_cache: bool = True
    batch_buckets: str = ""
    query_buckets: str = ""
    context_buckets: str = ""
    bucket_file: Path | None = None
    max_graphs: int = 0
    speculation: SpeculationMode = SpeculationMode.OFF
    speculative_model: Path | None = None
    num_speculative_tokens: int = 0
    lora_bytes: int = 256 << 20

    @property
    def bucketed(self) -> bool:
        """Whether buckets are given."""
        sizes = self.batch_buckets or self.query_buckets or self.context_buckets
        return bool(sizes or self.bucket_file)

    @property
    def draft_lengths(self) -> tuple[int, ...]:
        """How many drafts of a sequence may be verified at once, ascending; () without any."""
        if self.speculation is SpeculationMode.OFF:
            return ()
        fixed = self.num_speculative_tokens
        return (fixed,) if fixed else MEASURED_LENGTHS

    def __post_init__(self) -> None:
        for name, least in (
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", self.max_num_seqs),
            ("prefill_chunk", 0),
            ("block_size", 1),
            ("kv_cache_bytes", 0),
            ("stream_interval", 1),
            ("max_waiting_requests", 1),
            ("swap_bytes", 0),
            ("max_graphs", 0),
            ("lora_bytes", 0),
        ):
            if getattr(self, name) < least:
                more = " (max_num_seqs)" if name == "max_num_batched_tokens" else ""
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; expected at least {least}{more}"
                )
        if (self.speculation is SpeculationMode.MODEL) != (self.speculative_model is not None):
            raise ConfigError(
                f"speculation is {self.speculation.value!r} and speculative_model is "
                f"{str(self.speculative_model or '')!r}; expected both 'model' and the folder of "
                "one, or neither"
            )
        if not 0 <= self.num_speculative_tokens <= MAX_DRAFTS:
            raise ConfigError(
                f"num_speculative_tokens is {self.num_speculative_tokens}; expected auto, or 1 to "
                f"{MAX_DRAFTS}"
            )
        for name in ("itl_target_ms", "aging_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected more than 0")


def read_settings(given: Mapping[str, str]) -> EngineSettings:
    """Return the settings that a model's parameters say, by key.

    Buckets are `buckets.<axis>`, or the path of a file as `buckets`; `speculative_model` is a path.

    Raises:
        ConfigError: a value cannot be used.
    """

    def whole(key: str) -> int:
        text = given[key].strip()
        if not text.isdecimal():
            raise ConfigError(f"parameter {key!r} is {text!r}; expected a whole number")
        return int(text)

    def automatic(key: str) -> int:
        if given[key].strip() == "auto":
            return 0
        if number := whole(key):
            return number
        raise ConfigError(f"parameter {key!r} is '0'; expected auto, or 1 or more")

    try:
        itl_target_ms = float(given["itl_target_ms"])
    except ValueError as error:
        text = given["itl_target_ms"]
        raise ConfigError(f"parameter 'itl_target_ms' is {text!r}; expected a number") from error
    return EngineSettings(
        max_num_batched_tokens=whole("max_num_batched_tokens"),
        max_num_seqs=whole("max_num_seqs"),
        prefill_chunk=automatic("prefill_chunk"),
        itl_target_ms=itl_target_ms,
        block_size=whole("block_size"),
        kv_cache_bytes=parse_bytes(given["kv_cache_bytes"], "kv_cache_bytes"),
        kv_cache_dtype=given["kv_cache_dtype"],
        stream_interval=whole("stream_interval"),
        scheduling=Scheduling(given["scheduling"]),
        max_waiting_requests=whole("max_waiting_requests"),
        preemption=PreemptionMode(given["preemption"]),
        swap_bytes=parse_bytes(given["swap_bytes"], "swap_bytes"),
        prefix_cache=given["prefix_cache"] == "on",
        batch_buckets=given.get("buckets.batch", ""),
        query_buckets=given.get("buckets.query", ""),
        context_buckets=given.get("buckets.context", ""),
        bucket_file=_path(given.get("buckets")),
        max_graphs=int(given.get("max_graphs", "0")),
        speculation=SpeculationMode(given["speculation"]),
        speculative_model=_path(given.get("speculative_model")),
        num_speculative_tokens=automatic("num_speculative_tokens"),
        lora_bytes=parse_bytes(given["lora_bytes"], "lora_bytes"),
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
