"""The presets: what each sets, and why. docs/presets.md is generated from this table.

Models that generate text have the same three, with settings of their own. Every preset of a table
names the same settings, so that one undoes what another did. None names what would change answers
or refuse requests by their size (`precision`, `overflow`, `max_batch_size`), what belongs to a
whole device (`lanes`, the workspace pool), a list that is the model's own (`buckets.<axis>`,
`preferred_batch_size`), or `early_reply`, whose default was best for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ge_backend.cli.model.applied import BATCHING_DELAY, INSTANCES
from ge_backend.config.settings import GENERATION_SETTINGS, SETTINGS

__all__ = ["DEFAULTS", "KEYS", "PRESETS", "TEXT_KEYS", "TEXT_PRESETS", "Choice", "Preset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
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


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="high_throughput",
            whom="many requests at once, and the time of a single one matters little: indexing, "
            "offline work",
            choices={
                INSTANCES: Choice(
                    value="2", why="one stages and answers a batch while the other's runs"
                ),
                BATCHING_DELAY: Choice(
                    value="0",
                    why="under load batches fill while others run; waiting for more gains nothing "
                    "then, and costs throughput when few requests come",
                ),
                "threads": Choice(
                    value="1",
                    why="on a CPU runs side by side, of one thread each, never wait for each "
                    "other's threads",
                ),
                "max_elements": Choice(value="0", why="the planner is free to cut by cost alone"),
                "max_queue_size": Choice(
                    value="0",
                    why="nothing is refused, and requests wait in Triton, which costs nothing per "
                    "answer",
                ),
                "priority": Choice(
                    value="3", why="models that somebody waits for go first on a shared device"
                ),
            },
        ),
        Preset(
            name="low_latency",
            whom="somebody waits for each answer, and rather hears `try again` than waits long: "
            "search, dialogue",
            choices={
                INSTANCES: Choice(
                    value="2", why="a request need not wait until the batch before it has ended"
                ),
                BATCHING_DELAY: Choice(value="0", why="no request waits for company"),
                "threads": Choice(
                    value="0",
                    why="on a CPU runs that have been alone for a while use all cores where "
                    "that is faster",
                ),
                "max_elements": Choice(
                    value="1024", why="short requests need not wait for the end of a long run"
                ),
                "max_queue_size": Choice(
                    value="32",
                    why="more load than can be served is refused at once instead of making "
                    "everybody wait longer and longer; fewer would refuse bursts that one batch "
                    "serves, as instances get unequal shares of them",
                ),
                "priority": Choice(value="1", why="goes first on a device that models share"),
            },
        ),
        Preset(
            name="memory_constrained",
            whom="many models on one device, or one that hardly fits",
            choices={
                INSTANCES: Choice(
                    value="1", why="each instance has a process and buffers of its own"
                ),
                BATCHING_DELAY: Choice(value="0", why="waiting would make batches larger"),
                "threads": Choice(
                    value="1", why="on a CPU weights are held once, and not twice for wide runs"
                ),
                "max_elements": Choice(
                    value="1024", why="scratch memory and buffers grow with the largest run"
                ),
                "max_queue_size": Choice(value="64", why="requests that wait hold their tensors"),
                "priority": Choice(value="2", why="costs no memory"),
            },
            hint="for all models of a device: `ge-backend serve --workspace-pool SIZE` bounds "
            "their scratch together (`ge-backend plan` says how little will do), and GE_LANES=1 "
            "lets one run go at a time",
        ),
    )
}

TEXT_PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="high_throughput",
            whom="many texts at once, which nobody reads as they are written",
            choices={
                "max_num_seqs": Choice(
                    value="128", why="a step reads all weights once, for however many texts"
                ),
                "max_num_batched_tokens": Choice(
                    value="4096", why="prompts go in few large pieces, which compute best"
                ),
                "itl_target_ms": Choice(
                    value="1000", why="nobody waits for the next token, so prompts go first"
                ),
                "max_waiting_requests": Choice(value="8192", why="a whole job may be sent at once"),
                "priority": Choice(
                    value="3", why="models that somebody waits for go first on a shared device"
                ),
            },
        ),
        Preset(
            name="low_latency",
            whom="somebody reads along, and rather hears `try again` than waits long: dialogue",
            choices={
                "max_num_seqs": Choice(
                    value="16", why="each further text makes the step of all others longer"
                ),
                "max_num_batched_tokens": Choice(
                    value="1024", why="no step of prompts alone is long, and the next one comes in"
                ),
                "itl_target_ms": Choice(
                    value="50", why="20 tokens a second are more than anybody reads"
                ),
                "max_waiting_requests": Choice(
                    value="32", why="more load than can be served is refused at once"
                ),
                "priority": Choice(value="1", why="goes first on a device that models share"),
            },
        ),
        Preset(
            name="memory_constrained",
            whom="a model that hardly fits, or one of many on a device",
            choices={
                "max_num_seqs": Choice(
                    value="8", why="the cache is never larger than so many longest texts"
                ),
                "max_num_batched_tokens": Choice(
                    value="512", why="scratch memory grows with the tokens of a step"
                ),
                "itl_target_ms": Choice(value="100", why="costs no memory"),
                "max_waiting_requests": Choice(value="64", why="requests that wait hold prompts"),
                "priority": Choice(value="2", why="costs no memory"),
            },
            hint="`kv_cache_bytes` bounds the cache itself, and with it the longest text; "
            "`ge-backend plan` says what it takes",
        ),
    )
}

KEYS: tuple[str, ...] = tuple(next(iter(PRESETS.values())).choices)
TEXT_KEYS: tuple[str, ...] = tuple(next(iter(TEXT_PRESETS.values())).choices)
# What a configuration means that does not name a setting.
DEFAULTS: Mapping[str, str] = {
    INSTANCES: "1",
    BATCHING_DELAY: "0",
    **{s.key: s.default for s in SETTINGS if s.key in KEYS},
    **{s.key: s.default for s in GENERATION_SETTINGS if s.key in TEXT_KEYS},
}
