"""Write docs/configuration.md, metrics.md, presets.md and from_cpp_ge_backend.md from the code.

`python docs/generate.py` writes them; a test fails when they are out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ge_backend.cli.model.presets import DEFAULTS, KEYS, PRESETS, Preset
from ge_backend.cpp_ge_keys import CPP_GE_KEYS
from ge_backend.metrics import METRICS
from ge_backend.settings import FAMILIES, MACHINE_SETTINGS, SETTINGS, Setting

DOCS = Path(__file__).resolve().parent

CONFIGURATION_HEAD = """\
# Configuration

A model is configured in its `config.pbtxt`.
Wherever Triton has a field of its own (`max_batch_size`, `dynamic_batching`, `instance_group`,
`allow_ragged_batch`, `batch_input`, `reshape`, …) that field is used.
The rest are `parameters` (those of the C++ GE backend are understood too:
[from_cpp_ge_backend.md](from_cpp_ge_backend.md)):

    parameters { key: "buckets.sequence" value { string_value: "16,32,64,128,256" } }

Precedence: `parameters`, then the environment variable, then the default.
An unknown key stops the model from loading, with a list of the known ones.
This page is generated from `backend/ge/ge_backend/settings.py`.
"""

METRICS_HEAD = """\
# Metrics

On the host's own endpoint (`http://…:8002/metrics` by default), four times a second.
Every series has the labels `model`, `version` and `device`; further ones are listed. `device` is
what the model runs on, `npu:0,npu:1` for several; where it is listed again, it is one of them.
Instances of one model add into one series.
This page is generated from `backend/ge/ge_backend/metrics.py`.
"""


CPP_GE_HEAD = """\
# From the C++ GE backend

`npu_ge`, the C++ backend for Ascend NPUs, reads its settings from `config.pbtxt` too.
A model repository made for it moves by changing one word:

    backend: "ge"        # was "npu_ge"

Inputs, outputs, batching and instances are Triton's own fields and mean the same.
The model file may keep its name if it is the only `.onnx` in its folder.
To try such a repository on another machine, nothing in it has to be changed:
with `GE_DEVICE=cpu` in the server's environment, or `ge-backend serve --device cpu`,
a model that only lists `device_ids` runs on the CPU.

## Its keys

Nothing is ignored without a word: a key without effect is named in the log when the model loads,
and one that cannot be honoured stops the model from loading, with the reason.
This table is generated from `backend/ge/ge_backend/cpp_ge_keys.py`.
"""

CPP_GE_DIFFERENCES = (
    (
        "Keys also come from `--backend-config=npu_ge,key=value`.",
        (
            "Nothing from there reaches a Python-based backend. For all models there are the "
            "variables of [configuration.md](configuration.md)."
        ),
    ),
    (
        "Each ONNX model is compiled at every start.",
        (
            "Once: the result is cached by everything that it depends on, and `ge-backend compile` "
            "makes it ahead of time ([compile.md](compile.md))."
        ),
    ),
    ("A frozen TensorFlow `.pb` is accepted.", "It is not; export ONNX."),
    (
        "Work is balanced over cards where all requests have one shape.",
        "By measured cost, whatever the shapes, and by what other models have to do there.",
    ),
    (
        "`preferred_batch_size` should match the gears.",
        "It need not: whatever the host collects is cut into gears by cost.",
    ),
)


PRESETS_HEAD = """\
# Presets

A preset is a set of values that belong together, for a purpose.
`ge-backend preset` writes them into a model's `config.pbtxt`:

    ge-backend preset models/encoder low_latency             # says what it changes, and why
    ge-backend preset models/encoder low_latency --dry-run   # the same, and writes nothing
    ge-backend preset --list

- Only the settings below are written, each in its place; comments, order and everything else stay.
- What has its value already, also by default, is not written; applied twice, a preset does nothing.
- All presets name the same settings, so another one undoes what the one before has set.
- The server reads the file when it loads the model the next time.

This page is generated from `backend/ge/ge_backend/cli/model/presets.py`.
"""

# Of a machine that others used as well: a quiet run of the two commands should replace them.
PRESETS_FIGURES = """\
## What they do

`python -m benchmarks.bench_presets --device null` sends the same requests of unequal length to a
model without a preset (`plain`) and to the same model with each preset. Runs sleep 1 ms and 0.12 ms
per token, two at once; `open` are requests that come at random, 0.7 and 1.5 times as many as
`plain` answers with 32 in flight. In brackets: as a multiple of `plain` in the same round, median
of five rounds.

| load | configuration | answers/s | p50 ms | p99 ms | refused |
| --- | --- | ---: | ---: | ---: | ---: |
| 1 in flight | plain | 113 (1.00x) | 7.8 (1.00x) | 20.5 (1.00x) | 0% |
| 1 in flight | high_throughput | 111 (0.93x) | 7.5 (1.06x) | 28.4 (1.17x) | 0% |
| 1 in flight | memory_constrained | 104 (0.93x) | 8.6 (1.10x) | 23.7 (1.18x) | 0% |
| 1 in flight | low_latency | 103 (0.90x) | 8.8 (1.13x) | 28.5 (1.39x) | 0% |
| 32 in flight | plain | 348 (1.00x) | 90.4 (1.00x) | 165 (1.00x) | 0% |
| 32 in flight | high_throughput | 350 (1.04x) | 89.3 (0.98x) | 166 (1.03x) | 0% |
| 32 in flight | memory_constrained | 331 (0.95x) | 94.0 (1.04x) | 170 (1.04x) | 0% |
| 32 in flight | low_latency | 357 (1.08x) | 87.3 (0.94x) | 159 (0.93x) | 0% |
| open, 0.7x | plain | 230 (1.00x) | 29.2 (1.00x) | 77.1 (1.00x) | 0% |
| open, 0.7x | high_throughput | 229 (1.00x) | 17.9 (0.76x) | 51.3 (0.89x) | 0% |
| open, 0.7x | memory_constrained | 230 (1.00x) | 24.5 (0.84x) | 72.3 (0.94x) | 0% |
| open, 0.7x | low_latency | 226 (1.00x) | 21.4 (0.70x) | 65.3 (0.91x) | 0% |
| open, 1.5x | plain | 342 (1.00x) | 336 (1.00x) | 723 (1.00x) | 0% |
| open, 1.5x | high_throughput | 375 (1.10x) | 251 (0.70x) | 550 (0.71x) | 0% |
| open, 1.5x | memory_constrained | 327 (0.95x) | 206 (0.72x) | 320 (0.44x) | 29% |
| open, 1.5x | low_latency | 362 (1.11x) | 177 (0.57x) | 356 (0.49x) | 22% |

So two instances shorten the waiting, and with more load than can be served a bounded queue keeps it
short for those that it takes. One request at a time gains nothing: there is nobody to wait for, and
an answer from the bounded queue has a round trip of its own.

Without `--device null` the model is all-MiniLM-L6-v2 on ONNX Runtime. Its memory, each on a server
of its own, with 32 requests in flight:

| configuration | executor MiB | all processes MiB |
| --- | ---: | ---: |
| plain | 534 (1.00x) | 575 (1.00x) |
| high_throughput | 446 (0.83x) | 516 (0.90x) |
| low_latency | 292 (0.55x) | 360 (0.63x) |
| memory_constrained | 186 (0.35x) | 234 (0.41x) |

Both were measured on two cores of an AMD EPYC of which other programs used up to 1.8. Memory and
runs that sleep depend little on that: with one request in flight a tenth is noise. Rates of the
encoder would mean nothing.
"""

PRESETS_SET_NONE_OF = (
    (
        "`precision`, `max_batch_size`, `overflow`",
        "they change answers, or which requests are taken",
    ),
    (
        "`buckets.<axis>`, `preferred_batch_size`, `max_graphs`",
        "they follow from the model and its traffic: `ge-backend tune`",
    ),
    (
        "`early_reply`",
        "on a device that only sleeps, `never` answered no more requests than `auto`",
    ),
    (
        "`lanes`, the workspace pool",
        (
            "they belong to a device and all its models: `GE_LANES`, "
            "[`GE_WORKSPACE_POOL`](memory.md)"
        ),
    ),
    (
        "Triton's queue policies and priorities",
        (
            "they make this release of Triton [stall](scheduling.md); the command points out "
            "those that it finds"
        ),
    ),
)

PRESETS_LEAVE_OUT = (
    (
        "with `sequence_batching`",
        "instances, the batching delay and the queue: slots and order are Triton's",
    ),
    ("with `fuse`", "`threads`, `max_elements` and `priority`, which each step has for itself"),
    ("with several groups in `instance_group`", "their counts"),
    ("whose buckets are listed whole, or have more elements in one row", "`max_elements`"),
)

PRESETS_TAIL = """\
An ensemble has none of these settings; the command refuses it and names its steps.
An axis that `buckets.<axis>` does not limit is looked up in the model file only at load:
where one row has more elements than `max_elements`, the model does not load, and the error says
what to raise.
"""


def presets() -> str:
    """Return the text of docs/presets.md."""
    whom = ((f"`{preset.name}`", preset.whom) for preset in PRESETS.values())
    values = ([f"`{value}`" for value in (key, DEFAULTS[key], *_values(key))] for key in KEYS)
    reasons = (_reasons(preset) for preset in PRESETS.values())
    return "\n".join(
        (
            PRESETS_HEAD,
            _table(("preset", "for whom"), whom),
            _table(("setting", "default", *(f"`{name}`" for name in PRESETS)), values),
            *reasons,
            PRESETS_FIGURES,
            "## What no preset sets\n",
            _table(("setting", "why"), PRESETS_SET_NONE_OF),
            "## Where a setting does not apply\n",
            "It is left out, and the command says so.\n",
            _table(("model", "what is left out"), PRESETS_LEAVE_OUT),
            PRESETS_TAIL,
        )
    )


def _values(key: str) -> list[str]:
    return [preset.choices[key].value for preset in PRESETS.values()]


def _reasons(preset: Preset) -> str:
    rows = ((f"`{key}`", f"`{c.value}`", c.why) for key, c in preset.choices.items())
    lines = [f"## `{preset.name}`\n", _table(("setting", "value", "why"), rows)]
    if preset.hint:
        lines.append(f"Beside it, {preset.hint}.\n")
    return "\n".join(lines)


def from_cpp_ge_backend() -> str:
    """Return the text of docs/from_cpp_ge_backend.md."""
    rows = (
        (", ".join(f"`{name}`" for name in key.key.split(", ")), key.there, key.here)
        for key in CPP_GE_KEYS
    )
    return "\n".join(
        (
            CPP_GE_HEAD,
            _table(("key", "there", "here"), ([_cell(text) for text in row] for row in rows)),
            "## What else is different\n",
            _table(("there", "here"), CPP_GE_DIFFERENCES),
        )
    )


def configuration() -> str:
    """Return the text of docs/configuration.md."""
    return "\n".join(
        (
            CONFIGURATION_HEAD,
            "## Parameters of a model\n",
            _table(("key", "default", "variable", "what it does"), map(_setting_row, SETTINGS)),
            "## Parameters with a name in them\n",
            _table(
                ("key", "what it does"),
                ((f"`{f.prefix}<{f.placeholder}>`", f.help) for f in FAMILIES),
            ),
            "## Environment variables for the whole machine\n",
            _table(
                ("variable", "default", "what it does"),
                (
                    (f"`{s.variable}`", f"`{s.default}`" if s.default else "", s.help)
                    for s in MACHINE_SETTINGS
                ),
            ),
        )
    )


def metrics() -> str:
    """Return the text of docs/metrics.md."""
    rows = (
        (
            f"`{metric.name}`",
            metric.kind.published,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.help,
        )
        for metric in METRICS.values()
    )
    return "\n".join(
        (METRICS_HEAD, _table(("metric", "kind", "further labels", "what it is"), rows))
    )


def _setting_row(setting: Setting) -> tuple[str, ...]:
    choices = f" One of {', '.join(f'`{c}`' for c in setting.choices)}." if setting.choices else ""
    variable = f"`{setting.variable}`" if setting.variable else ""
    return (f"`{setting.key}`", f"`{setting.default}`", variable, setting.help + choices)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(head), _line(["---"] * len(head)), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    (DOCS / "configuration.md").write_text(configuration())
    (DOCS / "metrics.md").write_text(metrics())
    (DOCS / "presets.md").write_text(presets())
    (DOCS / "from_cpp_ge_backend.md").write_text(from_cpp_ge_backend())
