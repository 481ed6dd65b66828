"""Write the pages of docs/ that are tables in the code: see the end of this file.

`python docs/generate.py` writes them; a test fails when they are out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ge_backend.metrics import METRICS
from ge_backend.model.config.cpp_ge_keys import CPP_GE_KEYS
from ge_backend.model.config.engine_table import ENGINES, EngineRow
from ge_backend.model.config.settings import (
    FAMILIES,
    GENERATION_SETTINGS,
    MACHINE_SETTINGS,
    REMOVED,
    SETTINGS,
    Family,
    Setting,
)
from ge_tools.model.presets import DEFAULTS, PRESETS, TEXT_PRESETS, Preset
from ge_tools.tritonserver.abilities import ABILITIES

DOCS = Path(__file__).resolve().parent

CONFIGURATION_HEAD = """\
# Configuration

A model is configured in its `config.pbtxt`: by Triton's own fields (`max_batch_size`,
`dynamic_batching`, `instance_group`, `allow_ragged_batch`, `batch_input`, `reshape`, …) wherever it
has one, and by `parameters` for the rest (those of the C++ GE backend are understood too:
[from_cpp_ge_backend.md](from_cpp_ge_backend.md)):

    parameters { key: "buckets.sequence" value { string_value: "16,32,64,128,256" } }

Precedence: `parameters`, then the environment variable, then the default.
An unknown key stops the model from loading, with a list of the known ones.
This page is generated from `backend/ge/ge_backend/model/config/settings.py`.

A model of one line, `backend: "ge"`, has `max_batch_size: 32` where every tensor of its file begins
with one and the same free axis, else 0, and an empty `dynamic_batching`. A `max_batch_size: 0` that
`config.pbtxt` says is kept, and one of a load request that says more than it.
Triton starts one instance where none are named, and
one for each NVIDIA GPU; where the model runs is said by `device` alone, so write
`instance_group [ { count: 1 kind: KIND_CPU } ]` there. Two instances answer
more of an ONNX file under load; an encoder's checkpoint on a CPU
[is best with one](../benchmarks/README.md#figures).

`GE_TRITONSERVER` names the server for `ge-backend serve` and `check`, its binary or folder
(`/opt/tritonserver`, else the wheel), as `--tritonserver` does.
"""

ENGINES_HEAD = """\
Of several that can run a file, the first that is installed and has the precision does, unless the
parameter `engine` names one. `.om` files, and ONNX models on an NPU, are run by the device itself.
"""

REMOVED_HEAD = """\
A model that still has one of them loads, and its log says this.
"""

METRICS_HEAD = """\
# Metrics

On the host's own endpoint (`http://…:8002/metrics`), four times a second; idle, every
two seconds. Every series has the labels `model`, `version` and `device` (`npu:0,npu:1` for
several; one of them where it stands in braces, as further labels do), and most are there once they
count something. Instances of one model add into one series, but for what has
the label `model_instance`: sum over it.
Once a model is unloaded its counters stay as they are. Of its gauges, those of a device are NaN, so
that no alert is true of them; the others are 0, but for `ge_warmup_seconds`, `ge_buckets` and
`ge_model_heals`. Those of a killed stub stay until its model is loaded anew.
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
With `ge-backend serve --device cpu` a model that only lists `device_ids` runs on the CPU.

## Its keys

A key without effect is named in the log when the model loads, and one that cannot be honoured stops
the model from loading, with the reason. This table is generated from
`backend/ge/ge_backend/model/config/cpp_ge_keys.py`.
"""

CPP_GE_DIFFERENCES = """\
## What else is different

- Nothing of `--backend-config=npu_ge,key=value` reaches a Python-based backend. For all models
  there are the variables of [configuration.md](configuration.md).
- An ONNX model is compiled once, not at every start ([compile.md](compile.md)).
- A frozen TensorFlow `.pb` is not accepted; export ONNX.
- Work is balanced over cards by measured cost, whatever the shapes; `preferred_batch_size` need not
  match the gears.
"""


RELEASES_HEAD = """\
# Releases of Triton

Supported are releases from 2.44 (container 24.03) on; older ones are refused, newer ones than 2.70
are served with a note. What a server can do is read from its help, its `TRITON_VERSION` and, once
it runs, its metadata. This page is generated from `tools/ge_tools/tritonserver/abilities.py`.

## What differs
"""

RELEASES_TAIL = """\
Besides:

- On 2.44 and 2.48 a server that has generated a text takes its whole exit timeout to stop, and ends
  with 1. 2.44 refuses a text as `sequence_id`.
- From 24.11 on the `pip` of the containers wants `PIP_BREAK_SYSTEM_PACKAGES=1`.
- From 2.59 (25.06) on requests over HTTP are bounded in size, loads that bring files too: 64 MiB,
  which `-- --http-max-input-size=BYTES` raises.
- From 2.58 (25.05) on gRPC requests that come while the server stops are refused as UNAVAILABLE;
  before, as NOT_FOUND.
- Most kinds of [requests that end a server](security.md#what-ends-a-server) are refused from
  releases between 2.53 (24.12) and 2.69 (26.05) on: where clients are not trusted, upgrade.

## What has run

`make test-host TRITON=/opt/tritonserver` runs the tests with a real server against an installation
and prints a line of a table: release, what was run, result, date. `make test` runs them on 2.51, in
the wheel of `nvidia-pytriton` 0.7.0, on every change; no other installation has been run that way.

What a stub does with requests is tested on Python 3.12 and 3.13 with numpy 2, too, by
`make test-all` (`tests/backend/host/test_other_pythons.py`).
"""

PRESETS_HEAD = """\
# Presets

A preset is a set of values that belong together, for a purpose.
`ge-backend preset` writes them into a model's `config.pbtxt`:

    ge-backend preset models/encoder low_latency             # says what it changes, and why
    ge-backend preset models/encoder low_latency --dry-run   # the same, and writes nothing
    ge-backend preset --list

Only the settings below are written; all presets name the same ones, so another one undoes what the
one before has set. What they gain and cost is [measured](../benchmarks/README.md#presets).
This page is generated from `tools/ge_tools/model/presets.py`.
"""

PRESETS_TEXT = """\
## Models that generate text

They have the same three presets, with settings of their own. What they gain has not been measured.
"""

PRESETS_TAIL = """\
## What no preset sets

Settings that change answers or which requests are taken (`precision`, `max_batch_size`,
`overflow`); buckets, which follow from the traffic (`ge-backend tune`); `preferred_batch_size`,
[whose best number](scheduling.md#how-much-an-instance-takes-at-once) is the model's own; `lanes`
and the [workspace pool](memory.md), which belong to a device and all its models.

A setting that does not apply to a model (with sequences, `fuse`, or several groups of instances) is
left out, and the command says so. An ensemble has none of these settings; its steps have.
"""


def presets() -> str:
    """Return the text of docs/presets.md."""
    return "\n".join(
        (
            PRESETS_HEAD,
            *_presets(PRESETS),
            PRESETS_TEXT,
            *_presets(TEXT_PRESETS),
            PRESETS_TAIL,
        )
    )


def _presets(presets: Mapping[str, Preset]) -> Iterator[str]:
    """Yield whom each preset is for, all values side by side, and what helps beside them."""
    yield _table(("preset", "for whom"), ((f"`{p.name}`", p.whom) for p in presets.values()))
    rows = (
        [f"`{v}`" for v in (key, DEFAULTS[key], *(p.choices[key].value for p in presets.values()))]
        for key in next(iter(presets.values())).choices
    )
    yield _table(("setting", "default", *(f"`{name}`" for name in presets)), rows)
    yield from (f"Beside `{p.name}`, {p.hint}.\n" for p in presets.values() if p.hint)


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
            CPP_GE_DIFFERENCES,
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
                ((keys, text) for text, keys in _families(FAMILIES).items()),
            ),
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
                ("engine", "devices", "files", "precision", "extra of each device"),
                _engine_rows(),
            ),
            "## Removed parameters\n",
            REMOVED_HEAD,
            _table(("key", "what became of it"), ((f"`{k}`", v) for k, v in REMOVED.items())),
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
    tables = (
        f"## {kind.capitalize()}s\n\n{_table(('metric', 'what it is'), _metric_rows(kind))}"
        for kind in ("counter", "gauge", "histogram")
    )
    return "\n".join((METRICS_HEAD, *tables))


def _metric_rows(kind: str) -> Iterator[tuple[str, str]]:
    """Yield name and labels of each metric of a kind, and what it is."""
    for metric in METRICS.values():
        if metric.kind.published == kind:
            labels = f" {{{', '.join(metric.labels)}}}" if metric.labels else ""
            yield f"`{metric.name}`{labels}", metric.help


def _engine_rows() -> Iterator[tuple[str, ...]]:
    """Yield what each engine runs; devices on which it does the same are in one row."""
    same = dict[tuple[str, ...], list[EngineRow]]()
    for row in ENGINES:
        same.setdefault((row.name, _codes(row.ends), _codes(row.precisions)), []).append(row)
    for (name, ends, precisions), rows in same.items():
        devices = _codes(kind for row in rows for kind in row.kinds)
        yield f"`{name}`", devices, ends, precisions, _codes(row.extra for row in rows)


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _families(families: Iterable[Family]) -> dict[str, str]:
    """Return the keys that each help text is of; those of one text in one cell."""
    keys: dict[str, str] = {}
    for family in families:
        key = f"`{family.prefix}<{family.placeholder}>`"
        keys[family.help] = f"{keys[family.help]}, {key}" if family.help in keys else key
    return keys


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
