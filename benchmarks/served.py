"""Everything that a run needs, started and stopped together: encoder, traffic, server, load."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client import LoadProcess
from benchmarks.encoder.mixes import MIXES, draw
from benchmarks.harness.cpu import roles_of
from benchmarks.load import Order, Report
from benchmarks.pool import Pool, save_pools, truth
from benchmarks.random_encoder import write_encoder
from benchmarks.rivals.forward import ENGINES, load_forward
from benchmarks.systems import CHECKPOINT, ONNX_FILE, WIDTH, System, write_repository
from ge_tools.tritonserver.directory import processes_of
from ge_tools.tritonserver.installation import find_server
from ge_tools.tritonserver.options import ServerOptions
from ge_tools.tritonserver.server import TritonServer

__all__ = ["MINILM", "POOL_ROWS", "Served", "Traffic", "Window", "make_traffic", "serve"]

POOL_ROWS = 1024
# Largest allowed absolute difference of an element from the float32 truth, by engine.
TOLERANCES = {"onnx": 1e-4, "torch": 1e-4, "torch-bf16": 1e-2}
# A window in which others used more of the cores than this is measured again, so many times.
QUIET_SHARE = 0.075
ATTEMPTS = 3
MINILM = "all-MiniLM-L6-v2"
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "encoder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is sent, and to which encoder.

    Attributes:
        pools: file of the sequences and their truth.
        encoder: the model files, and the checkpoint's folder, by name.
        width: of its embeddings.
    """

    pools: Path
    encoder: Mapping[str, Path]
    width: int = WIDTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A short time in which one system is loaded; see `Order` for the fields."""

    system: System
    mix: str
    concurrency: int
    offset: int
    settle_s: float
    measure_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running server and the process that loads it."""

    server: TritonServer
    load: LoadProcess
    roles: Mapping[str, str]

    def measure(self, window: Window) -> Report:
        """Run one window, again if the rest of the machine was busy; return the quietest."""
        reports: list[Report] = []
        for _ in range(ATTEMPTS):
            reports.append(self.load.measure(self._order(window)))
            if _noise(reports[-1]) <= QUIET_SHARE * (os.cpu_count() or 1):
                break
        return min(reports, key=_noise)

    def _order(self, window: Window) -> Order:
        return Order(
            model=window.system.model,
            mix=window.mix,
            concurrency=window.concurrency,
            offset=window.offset,
            settle_s=window.settle_s,
            measure_s=window.measure_s,
            roles=self.roles,
        )


def _noise(report: Report) -> float:
    """Return how many cores the rest of the machine used."""
    return report.cpu_s["others"] / report.wall_s


def make_traffic(
    engine: str, mixes: Sequence[str], seed: int, folder: Path, *, encoder: str = MINILM
) -> Traffic:
    """Prepare the encoder, draw the sequences and run the checked ones for their truth.

    Args:
        engine: a key of `ENGINES`.
        mixes: keys of `MIXES`.
        seed: of what is drawn.
        folder: for the files.
        encoder: `MINILM`, or a size of `random_encoder.SIZES`.
    """
    files, width = _encoder(encoder, folder)
    checked, threads = ("onnx", 1) if encoder == MINILM else ("torch", os.cpu_count() or 1)
    forward = load_forward(checked, files[ENGINES[checked]], threads)
    drawn = {name: draw(MIXES[name], POOL_ROWS, seed) for name in mixes}
    pools = folder / "pools.npz"
    save_pools(
        {
            name: Pool(rows=tuple(rows), answers=truth(rows, forward), tolerance=TOLERANCES[engine])
            for name, rows in drawn.items()
        },
        pools,
    )
    return Traffic(pools=pools, encoder=files, width=width)


def _encoder(name: str, folder: Path) -> tuple[dict[str, Path], int]:
    """Return files and width of an encoder; a bare machine has no package of the real one."""
    program = ENGINES["torch"]
    if name != MINILM:
        width = write_encoder(name, folder)
        return {program: folder / program, CHECKPOINT: folder / CHECKPOINT}, width
    from demo.encoder import prepare  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    real = prepare(CACHE, Console(stderr=True))
    return {ONNX_FILE: real.onnx, program: real.program, CHECKPOINT: real.checkpoint}, WIDTH


@contextmanager
def serve(
    systems: tuple[System, ...],
    engine: str,
    traffic: Traffic,
    protocol: str,
    *,
    device: str = "cpu",
) -> Iterator[Served]:
    """Start one server with all systems, and a load generator for it."""
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        repository = Path(temporary) / "models"
        write_repository(
            repository, systems, engine, traffic.encoder, width=traffic.width, device=device
        )
        options = ServerOptions(
            repositories=(repository,),
            log_file=Path(temporary) / "server.log",
            # Costs are measured anew, and while no other model loads and keeps the cores busy.
            environment={"GE_CACHE_DIR": "off", "GE_WARMUP": "on"},
            arguments=("--model-load-thread-count=1",),
        )
        with TritonServer(find_server(), options) as server:
            address = server.http if protocol == "http" else server.grpc
            with LoadProcess(traffic.pools, protocol, address) as load:
                roles = roles_of(processes_of(server.directory.run))
                named = {str(pid): name for pid, name in roles.items()}
                yield Served(server=server, load=load, roles=named)
