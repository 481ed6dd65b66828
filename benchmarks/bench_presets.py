"""What the presets do: one encoder in a plain configuration, and with each preset applied to it.

One server has all four as models, which take turns; what is plain is what the others are measured
against. The loads: closed loops, and requests that come at random, fewer and more than the plain
configuration can answer. Memory is that of a server with one of them alone, because models share an
executor.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks import model_folder
from benchmarks.encoder.mixes import MIXES
from benchmarks.encoder.systems import ONNX_FILE
from benchmarks.encoder.traffic import MINILM, Sequences, load_encoder, pools_of, sequences
from benchmarks.harness import compare
from benchmarks.harness.cells import cells
from benchmarks.harness.client import LoadProcess
from benchmarks.harness.report import write
from benchmarks.harness.servers import FRESH, serve
from benchmarks.harness.turns import Load, System, Turn, take_turns, warm
from ge_backend.model.config.model_folder import read_folder
from ge_tools.model.applied import apply_settings
from ge_tools.model.changes import changes_of
from ge_tools.model.presets import PRESETS

__all__ = ["CONFIG", "CONFIGS", "main", "write_model"]

MIX = "lognormal"
PLAIN = "plain"
CONFIGS = (PLAIN, *PRESETS)
SYSTEMS = tuple(System(name=name, model=name, ours=name != PLAIN) for name in CONFIGS)
CONFIG = """\
backend: "ge"
max_batch_size: 32
input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "sentence_embedding" data_type: TYPE_FP32 dims: [ 384 ] } ]
dynamic_batching { }
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "buckets.rows" value { string_value: "1,4,16" } }
parameters { key: "buckets.sequence" value { string_value: "16,64,256" } }
"""


def main() -> None:
    """Measure and print."""
    parser = compare.parser("bench_presets", __doc__, [1, 32])
    parser.add_argument(
        "--offered",
        nargs="+",
        type=float,
        default=[0.7, 1.5],
        help="requests at random, by what the plain configuration answers with most in flight",
    )
    options = parser.parse_args(sys.argv[1:])
    context = compare.announce()
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        folder = Path(temporary)
        encoder = load_encoder(MINILM, folder)
        files, drawn = encoder.files, sequences(encoder, [MIX], options.seed)
        for config in CONFIGS:
            write_model(folder / "models" / config, config, files)
        loads = [Load(traffic=MIX, in_flight=n) for n in options.concurrency]
        pools = pools_of(SYSTEMS, drawn, "fp32")
        # Costs that one model's warm-up has measured are those of the next with equal threads.
        environment = {**FRESH, "GE_CACHE_DIR": str(folder / "cache")}
        with serve(folder / "models", environment) as server, LoadProcess(pools) as process:
            systems, pace = server.systems(SYSTEMS), compare.pace_of(options)
            warm(process, systems, loads)
            turns: list[Turn] = list(take_turns(process, systems, loads, pace))
            plain = [cell.per_s for cell in cells(turns) if cell.system.name == PLAIN][-1]
            for share in options.offered:
                offered = Load(traffic=MIX, rate=share * plain)
                turns += take_turns(process, systems, [offered], pace)
        memory = _memory(files, drawn, loads, folder)
    found = cells(turns, memory)
    compare.show(f"presets, {MIXES[MIX].help}", found, None)
    write("presets", found, context, options.output)


def _memory(
    files: Mapping[str, Path], drawn: dict[str, Sequences], loads: list[Load], folder: Path
) -> dict[str, float]:
    """Return MiB of each configuration, alone on a server, after requests."""
    found = {}
    for system in SYSTEMS:
        repository = folder / "alone" / system.name
        write_model(repository / system.name, system.name, files)
        with serve(repository) as server, LoadProcess(pools_of([system], drawn, "fp32")) as process:
            warm(process, server.systems([system]), loads[-1:])
            found[system.key] = server.memory_mib()
    return found


def write_model(folder: Path, config: str, files: Mapping[str, Path]) -> None:
    """Write a model in its plain configuration, and apply the preset of that name."""
    version = model_folder.write_model(folder, CONFIG)
    (version / ONNX_FILE).symlink_to(files[ONNX_FILE].resolve())
    if config != PLAIN:
        read = read_folder(folder)
        changes = changes_of(PRESETS[config], read.document, read.config({}))
        apply_settings(read.config_file, changes.settings)


if __name__ == "__main__":
    main()
