"""The presets: what each sets, and why. docs/presets.md is generated from this table.

Models that generate text have the same three, with settings of their own. Every preset of a table
names the same settings, so that one undoes what another did. None names what would change answers
or refuse requests by their size (`precision`, `overflow`, `max_batch_size`), what belongs to a
whole device (`lanes`, the workspace pool), a list that is the model's own (`buckets.<axis>`,
`preferred_batch_size`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ge_backend.model.config.settings import GENERATION_SETTINGS, SETTINGS
from ge_tools.model.applied import BATCHING_DELAY, INSTANCES

__all__ = ["DEFAULTS", "KEYS", "PRESETS", "TEXT_KEYS", "TEXT_PRESETS", "Choice", "Preset"]


class Choice(NamedTuple):
    """The value of one setting, as config.pbtxt has it, and the reason for it."""

    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What one name stands for.

    Attributes:
        whom: for which service it is.
        choices: by setting; all presets have the same ones.
        hint: what helps beside it and is not of one model.
    """

    name: str
    whom: str
    choices: Mapping[str, Choice]
    hint: str = ""


def _by_name(*presets: Preset) -> Mapping[str, Preset]:
    return {preset.name: preset for preset in presets}


PRESETS = _by_name(
    Preset(
        name="high_throughput",
        whom="many requests at once, and the time of a single one matters little: indexing, "
        "offline work",
        choices={
            INSTANCES: Choice("2", "one stages and answers a batch while the other's runs"),
            BATCHING_DELAY: Choice(
                "0",
                "under load batches fill while others run; waiting for more gains nothing "
                "then, and costs throughput when few requests come",
            ),
            "threads": Choice(
                "1",
                "on a CPU runs side by side, of one thread each, never wait for each "
                "other's threads",
            ),
            "max_elements": Choice("0", "the planner is free to cut by cost alone"),
            "max_queue_size": Choice(
                "0",
                "nothing is refused, and requests wait in Triton, which costs nothing per answer",
            ),
            "priority": Choice("3", "models that people wait for go first on a shared device"),
        },
    ),
    Preset(
        name="low_latency",
        whom="a person waits for each answer, and rather hears `try again` than waits long: "
        "search, dialogue",
        choices={
            INSTANCES: Choice("2", "a request need not wait until the batch before it has ended"),
            BATCHING_DELAY: Choice("0", "no request waits for company"),
            "threads": Choice(
                "0",
                "on a CPU runs that have been alone for a while use all cores where that is faster",
            ),
            "max_elements": Choice(
                "1024", "short requests need not wait for the end of a long run"
            ),
            "max_queue_size": Choice(
                "32",
                "more load than can be served is refused at once instead of making "
                "everybody wait longer and longer; fewer would refuse bursts that one batch "
                "serves, as instances get unequal shares of them",
            ),
            "priority": Choice("1", "goes first on a device that models share"),
        },
    ),
    Preset(
        name="memory_constrained",
        whom="many models on one device, or one that hardly fits",
        choices={
            INSTANCES: Choice("1", "each instance has a process and buffers of its own"),
            BATCHING_DELAY: Choice("0", "waiting would make batches larger"),
            "threads": Choice("1", "on a CPU weights are held once, and not twice for wide runs"),
            "max_elements": Choice("1024", "scratch memory and buffers grow with the largest run"),
            "max_queue_size": Choice(
                "0",
                "a queue of the model's own is lost with its stub, and a single instance is the "
                "only one; requests wait in Triton",
            ),
            "priority": Choice("2", "costs no memory"),
        },
        hint="for all models of a device: `ge-backend serve --workspace-pool SIZE` bounds "
        "their scratch together (`ge-backend plan` says how little will do), and GE_LANES=1 "
        "lets one run go at a time",
    ),
)

TEXT_PRESETS = _by_name(
    Preset(
        name="high_throughput",
        whom="many texts at once, which are read when they are whole",
        choices={
            "max_num_seqs": Choice("128", "a step reads all weights once, for however many texts"),
            "max_num_batched_tokens": Choice(
                "4096", "prompts go in few large pieces, which compute best"
            ),
            "itl_target_ms": Choice(
                "1000", "no reader waits for the next token, so prompts go first"
            ),
            "max_waiting_requests": Choice("8192", "a whole job may be sent at once"),
            "priority": Choice("3", "models that people wait for go first on a shared device"),
        },
    ),
    Preset(
        name="low_latency",
        whom="a person reads along, and rather hears `try again` than waits long: dialogue",
        choices={
            "max_num_seqs": Choice("16", "each further text makes the step of all others longer"),
            "max_num_batched_tokens": Choice(
                "1024", "no step of prompts alone is long, and the next one comes in"
            ),
            "itl_target_ms": Choice(
                "50", "prompts add no more to a step, whatever else it computes"
            ),
            "max_waiting_requests": Choice("32", "more load than can be served is refused at once"),
            "priority": Choice("1", "goes first on a device that models share"),
        },
    ),
    Preset(
        name="memory_constrained",
        whom="a model that hardly fits, or one of many on a device",
        choices={
            "max_num_seqs": Choice("8", "the cache is never larger than this many longest texts"),
            "max_num_batched_tokens": Choice(
                "512", "scratch memory grows with the tokens of a step"
            ),
            "itl_target_ms": Choice("100", "costs no memory"),
            "max_waiting_requests": Choice("64", "requests that wait hold prompts"),
            "priority": Choice("2", "costs no memory"),
        },
        hint="`kv_cache_bytes` bounds the cache itself, and with it the longest text; "
        "`ge-backend plan` says what it takes",
    ),
)

KEYS: tuple[str, ...] = tuple(next(iter(PRESETS.values())).choices)
TEXT_KEYS: tuple[str, ...] = tuple(next(iter(TEXT_PRESETS.values())).choices)
# What a configuration means that does not name a setting.
DEFAULTS: Mapping[str, str] = {
    INSTANCES: "1",
    BATCHING_DELAY: "0",
    **{s.key: s.default for s in SETTINGS if s.key in KEYS},
    **{s.key: s.default for s in GENERATION_SETTINGS if s.key in TEXT_KEYS},
}
