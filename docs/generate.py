"""Write the pages of docs/ that are tables in the code: see the end of this file.

`python docs/generate.py` writes them; a test fails when they are out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ge_backend.metrics import METRICS
from ge_backend.model.config.cpp_ge_keys import CPP_GE_KEYS
from ge_backend.model.config.engine_table import ENGINES
from ge_backend.model.config.removed import REMOVED
from ge_backend.model.config.settings import (
    FAMILIES,
    GENERATION_SETTINGS,
    MACHINE_SETTINGS,
    SETTINGS,
    Setting,
)
from ge_tools.model.presets import DEFAULTS, PRESETS, TEXT_PRESETS, Preset
from ge_tools.tritonserver.abilities import ABILITIES

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
This page is generated from `backend/ge/ge_backend/model/config/settings.py`.

A model of one line, `backend: "ge"`, has `max_batch_size: 32` where every tensor of its file begins
with one and the same free axis, else 0, and an empty `dynamic_batching`. A `max_batch_size: 0` that
`config.pbtxt` says, or the file that the server reads in its place (`--model-config-name`), is
kept: tensors that are not declared have all of their dimensions then. Of a load request's
configuration Triton hands on a 0 whether it says so or not: it stays 0, and a line in the log says
so. Where the request brings nothing but that 0 for a model that is loaded, Triton does nothing at
all: say it in the file, or unload the model first and give files or any other field with it. A
one-line model has
no `instance_group`: Triton starts one instance, and on a machine with NVIDIA GPUs one for each of
them, by its documentation (not seen here). Instances are stubs; where the model runs is said by
`device` alone, so write `instance_group [ { count: 1 kind: KIND_CPU } ]` there. Two instances
answer more where several requests are in flight, up to 1.5 times as many with 8
([measured](decisions.md#0014-the-stub-plans-and-steps-inline-the-sender-runs)).

What is [tested of a model before it is served](tested.md#samples) is tested on real requests, too,
where its folder has some: files `samples/*.npz`, an array for each input, or `model_warmup` with
`input_data_file`.

`GE_TRITONSERVER` names the server for `ge-backend serve` and `check`: its binary or folder, as
`--tritonserver` does. Without either, `/opt/tritonserver` is looked at, then the wheel.
"""

ENGINES_HEAD = """\
Of several that can run a file, the first that is installed and has the precision does, unless the
parameter `engine` names one. `.om` files, and ONNX models on an NPU, are run by the device itself.
From `backend/ge/ge_backend/model/config/engine_table.py`.
"""

REMOVED_HEAD = """\
A model that still has one of them loads, and its log says this.
From `backend/ge/ge_backend/model/config/removed.py`.
"""

METRICS_HEAD = """\
# Metrics

On the host's own endpoint (`http://…:8002/metrics` by default), four times a second; idle, every
two seconds.
Every series has the labels `model`, `version` and `device`; further ones are listed. `device` is
what the model runs on, `npu:0,npu:1` for several; where it is listed again, it is one of them.
Instances of one model add into one series, but for what has the label `model_instance`: sum over
it.
Once a model is unloaded its counters stay as they are, for the next load to count on. Of its
gauges, those of a device are NaN, of which no comparison of an alert is true and which `min` and
`max` leave out; the others are 0, but for `ge_warmup_seconds`, `ge_buckets` and `ge_model_heals`,
which tell of the last load. A stub that is killed takes nothing back: its gauges stay as they were,
`ge_device_up` at 1, until its model is loaded anew.
This page is generated from `backend/ge/ge_backend/metrics.py`.
"""


CPP_GE_HEAD = """\
# From the C++ GE backend

`npu_ge`, the C++ backend for Ascend NPUs, reads its settings from `config.pbtxt` too.
A model repository made for it moves by changing one word:

    backend: "ge"        # was "npu_ge"

Inputs, outputs, batching and instances are Triton's own fields and mean the same.
The model file may keep its name if it is the only `.onnx`, `.xml`, `.pt2` or `.pt` in its folder;
a `tokenizer.json` or `config.json` beside it, as exports have them, changes nothing.
To try such a repository on another machine, nothing in it has to be changed:
with `GE_DEVICE=cpu` in the server's environment, or `ge-backend serve --device cpu`,
a model that only lists `device_ids` runs on the CPU.

## Its keys

Nothing is ignored without a word: a key without effect is named in the log when the model loads,
and one that cannot be honoured stops the model from loading, with the reason.
This table is generated from `backend/ge/ge_backend/model/config/cpp_ge_keys.py`.
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


RELEASES_HEAD = """\
# Releases of Triton

Supported are releases from 2.44 (container 24.03) on; older ones are refused, newer ones than 2.70
are served with a note. What a server can do is read from what it says of itself: its flags from its
own help, its release from `TRITON_VERSION` beside the container's, or from its metadata once it
runs. Nothing is guessed, so the server of a wheel, which has no such file, counts as one without
what only the release tells until it runs.

The table is generated from `tools/ge_tools/tritonserver/abilities.py`.

## What differs
"""

RELEASES_TAIL = """\
Besides:

- On 2.44 and 2.48 a server that has generated a text takes its whole exit timeout to stop, and ends
  with 1. 2.44 refuses a text as `sequence_id`.
- From 24.11 on the containers have Ubuntu 24.04 and Python 3.12, whose `pip` wants
  `PIP_BREAK_SYSTEM_PACKAGES=1`; the Dockerfile says so.
- From 2.59 (25.06) on requests over HTTP are bounded in size, loads that bring files too: 64 MiB,
  which `-- --http-max-input-size=BYTES` raises.
- From 2.58 (25.05) on gRPC requests that come while the server stops are refused as UNAVAILABLE;
  before, as NOT_FOUND.
- From 2.68 (26.04) on each stub writes a fatal Python error as its model is unloaded, those of
  plain Python models too. It has ended in order by then, and nothing is left.
- Most kinds of [requests that end a server](security.md#what-ends-a-server) are refused from
  releases between 2.53 (24.12) and 2.69 (26.05) on: where clients are not trusted, upgrade.

## What has run

`make test-host TRITON=/opt/tritonserver` runs the tests with a real server against an installation
and prints a line of a table: release, what was run, result, date. Tests say what they need of a
host, and are skipped with that reason where it has it not. `make test` runs them on 2.51, in the
wheel of `nvidia-pytriton` 0.7.0, on every change; no other installation has been run that way yet.

What a stub does with requests is tested on Python 3.12 and 3.13 with numpy 2, too, by
`make test-all` (`tests/backend/host/test_other_pythons.py`): by interpreters on `PATH`, of pyenv or
uv, or those that `GE_OTHER_PYTHONS` names; their packages come from the package index.
"""

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

This page is generated from `tools/ge_tools/model/presets.py`.
"""

# Of a machine that others used as well: a quiet run of the two commands should replace them.
PRESETS_FIGURES = """\
## What they do

`python -m benchmarks.bench_presets` sends the same texts of unequal length (log-normal, median 24)
to all-MiniLM-L6-v2 on ONNX Runtime without a preset (`plain`), and to the same model with each
preset. `open` are requests that come at random, 0.7 and 1.5 times as many as `plain` answers with
32 in flight. In brackets: as a multiple of `plain` in the same round, median of three rounds. Two
cores of an AMD EPYC, of which other programs used 0.05.

| load | configuration | answers/s | p50 ms | p99 ms | refused |
| --- | --- | ---: | ---: | ---: | ---: |
| 1 in flight | plain | 111 (1.00x) | 7.8 (1.00x) | 22.3 (1.00x) | 0% |
| 1 in flight | high_throughput | 85.1 (0.76x) | 10.6 (1.34x) | 25.9 (1.34x) | 0% |
| 1 in flight | memory_constrained | 79.2 (0.72x) | 11.5 (1.40x) | 28.0 (1.31x) | 0% |
| 1 in flight | low_latency | 104 (0.94x) | 8.2 (1.05x) | 24.7 (1.10x) | 0% |
| 32 in flight | plain | 226 (1.00x) | 142 (1.00x) | 243 (1.00x) | 0% |
| 32 in flight | high_throughput | 250 (1.11x) | 131 (0.92x) | 214 (0.88x) | 0% |
| 32 in flight | memory_constrained | 242 (1.07x) | 131 (0.97x) | 239 (0.98x) | 0% |
| 32 in flight | low_latency | 232 (1.01x) | 137 (1.02x) | 232 (0.94x) | 0% |
| open, 0.7x | plain | 148 (1.00x) | 68.4 (1.00x) | 182 (1.00x) | 0% |
| open, 0.7x | high_throughput | 157 (1.04x) | 30.0 (0.43x) | 78.4 (0.43x) | 0% |
| open, 0.7x | memory_constrained | 153 (1.03x) | 48.1 (0.70x) | 126 (0.69x) | 0% |
| open, 0.7x | low_latency | 152 (1.01x) | 50.2 (0.73x) | 173 (0.85x) | 0% |
| open, 1.5x | plain | 201 (1.00x) | 557 (1.00x) | 990 (1.00x) | 0% |
| open, 1.5x | high_throughput | 229 (1.16x) | 350 (0.53x) | 713 (0.67x) | 0% |
| open, 1.5x | memory_constrained | 178 (0.88x) | 357 (0.61x) | 572 (0.60x) | 33% |
| open, 1.5x | low_latency | 184 (0.94x) | 382 (0.66x) | 637 (0.61x) | 29% |

So `high_throughput` answers more under load, and what it costs shows with one request in flight,
whose run has one core. `low_latency` keeps both cores for that one, and shortens the wait of those
who come at random; under more load than can be served it refuses some at once and keeps the wait of
the others short. So did `memory_constrained` when this was measured, with a `max_queue_size` of 64
that it does not set any more: a single instance takes what waits in such a queue with it when its
stub dies. Between runs of the benchmark these ratios differ by a tenth and more.

Memory, each on a server of its own, with 32 requests in flight:

| configuration | executor MiB | all processes MiB |
| --- | ---: | ---: |
| plain | 546 (1.00x) | 614 (1.00x) |
| high_throughput | 455 (0.83x) | 554 (0.90x) |
| low_latency | 276 (0.51x) | 375 (0.61x) |
| memory_constrained | 182 (0.33x) | 250 (0.41x) |

`--device null` measures the same with runs that only sleep, which says how requests wait on a
machine that is not quiet.
"""

PRESETS_SET_NONE_OF = (
    (
        "`precision`, `max_batch_size`, `overflow`",
        "they change answers, or which requests are taken",
    ),
    (
        "`buckets.<axis>`, `max_graphs`",
        "they follow from the model and its traffic: `ge-backend tune`",
    ),
    (
        "`preferred_batch_size`",
        "[its best number](scheduling.md#how-much-an-instance-takes-at-once) is the model's own",
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

PRESETS_TEXT = """\
## Models that generate text

They have the same three presets, with settings of their own; which ones a model takes, the command
sees by its folder. What they gain has not been measured.
"""

PRESETS_TAIL = """\
An ensemble has none of these settings; the command refuses it and names its steps.
An axis that `buckets.<axis>` does not limit counts as `max_length` long; what the model file says
of it is looked up only at load: where one row has more elements than `max_elements`, the model does
not load, and the error says what to raise.
"""


def presets() -> str:
    """Return the text of docs/presets.md."""
    return "\n".join(
        (
            PRESETS_HEAD,
            *_presets(PRESETS, "##"),
            PRESETS_FIGURES,
            PRESETS_TEXT,
            *_presets(TEXT_PRESETS, "###"),
            "## What no preset sets\n",
            _table(("setting", "why"), PRESETS_SET_NONE_OF),
            "## Where a setting does not apply\n",
            "It is left out, and the command says so.\n",
            _table(("model", "what is left out"), PRESETS_LEAVE_OUT),
            PRESETS_TAIL,
        )
    )


def _presets(presets: Mapping[str, Preset], level: str) -> Iterator[str]:
    """Yield whom each preset is for, all values side by side, and the reasons."""
    yield _table(("preset", "for whom"), ((f"`{p.name}`", p.whom) for p in presets.values()))
    rows = (
        [f"`{v}`" for v in (key, DEFAULTS[key], *(p.choices[key].value for p in presets.values()))]
        for key in next(iter(presets.values())).choices
    )
    yield _table(("setting", "default", *(f"`{name}`" for name in presets)), rows)
    for preset in presets.values():
        yield _reasons(preset, level)


def _reasons(preset: Preset, level: str) -> str:
    rows = ((f"`{key}`", f"`{c.value}`", c.why) for key, c in preset.choices.items())
    lines = [f"{level} `{preset.name}`\n", _table(("setting", "value", "why"), rows)]
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
            "## Text generation\n",
            _table(
                ("key", "default", "variable", "what it does"),
                map(_setting_row, GENERATION_SETTINGS),
            ),
            "## Parameters with a name in them\n",
            _table(
                ("key", "what it does"),
                ((f"`{f.prefix}<{f.placeholder}>`", f.help) for f in FAMILIES),
            ),
            "## Removed parameters\n",
            REMOVED_HEAD,
            _table(("key", "what became of it"), ((f"`{k}`", v) for k, v in REMOVED.items())),
            "## Environment variables for the whole machine\n",
            _table(
                ("variable", "default", "what it does"),
                (
                    (f"`{s.variable}`", f"`{s.default}`" if s.default else "", s.help)
                    for s in MACHINE_SETTINGS
                ),
            ),
            "## Engines\n",
            ENGINES_HEAD,
            _table(
                ("engine", "devices", "files", "precision", "extra"),
                (
                    (
                        f"`{row.name}`",
                        ", ".join(f"`{kind}`" for kind in row.kinds),
                        ", ".join(f"`{end}`" for end in row.ends),
                        ", ".join(f"`{precision}`" for precision in row.precisions),
                        f"`{row.extra}`",
                    )
                    for row in ENGINES
                ),
            ),
        )
    )


def releases() -> str:
    """Return the text of docs/releases.md."""
    rows = (
        (f"{a.since[0]}.{a.since[1]} ({a.container})", _cell(a.what), _cell(a.means))
        for a in ABILITIES.values()
    )
    return "\n".join(
        (RELEASES_HEAD, _table(("from", "what is different", "which means"), rows), RELEASES_TAIL)
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
    (DOCS / "releases.md").write_text(releases())
