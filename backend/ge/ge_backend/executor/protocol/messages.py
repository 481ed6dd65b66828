"""The messages between a stub and an executor, as values; `wire.py` puts them on a socket.

    stub → executor                        executor → stub
    Hello(version)                         Welcome(version, device, lanes) + 1 descriptor
    Attach(arena, nbytes) + 1 descriptor   Ok
    Detach(arena)                          Ok
    Load(source, served_as)                Loaded(graph, signature, shape_policy, …)
    Compile(graph, shapes)                 Ok
    KeepStates(graph, states, count, …)    Ok
    RetainTensors(graph, owner, …)         TensorMemory(name, alignment)
    FreeTensors(graph, keys)               (nothing)
    Prepare(graph, inputs, repeats)        Prepared(cost_ns, outputs, …)
    Run(graph, arena, inputs, outputs)     [Started] Done(settled, spilled, …) [+ 1 descriptor]
    Cancel(run)                            (nothing: the run itself is answered)
    Inspect                                Report(…)
    HistoryRequest(after)                  History(runs, missed, last)
    OpenService(kind, key)                 Ok
    Post(body)                             Post(body)*
    (any)                                  Failed(error, message)

Every message carries `id`; a reply has the id of what it answers, and 0 answers what could not be
read. Replies to `Run` come in the order in which runs end. Tensors do not travel in messages: a
`TensorRef` says where they lie in an arena. `DeviceRows`, `GatherInput` and
`RetainOutput` are about those that `RetainTensors` lets stay on the device between the runs of
several graphs of one owner; see `device/resident/buffers.py`.

Any process of its user may ask what an executor holds, by `Inspect`, and what it did, by
`HistoryRequest`.

All that a service and one of its clients say to each other has the id of the `OpenService` by which
that client came. What stands in the bodies is between the two: the connection only routes them, and
keeps their order in either direction. A client that leaves closes its connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ge_backend.device.base import GraphSource
from ge_backend.device.workspace.pool import PoolFigures
from ge_backend.errors import GeError
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import Array, Shape, ShapePolicy, Signature

__all__ = [
    "NORMAL",
    "NO_SPILL",
    "VERSION",
    "AboutGraph",
    "Attach",
    "Cancel",
    "Compile",
    "Detach",
    "DeviceRows",
    "DirectOutcome",
    "Done",
    "Failed",
    "FreeTensors",
    "GatherInput",
    "Hello",
    "History",
    "HistoryRequest",
    "Inspect",
    "KeepStates",
    "Load",
    "Loaded",
    "Message",
    "Ok",
    "OpenService",
    "PastRun",
    "Post",
    "Prepare",
    "PrepareInput",
    "Prepared",
    "Report",
    "RetainOutput",
    "RetainTensors",
    "Run",
    "SpillRange",
    "Started",
    "TensorMemory",
    "TensorRef",
    "Welcome",
]

# Triton's words: priority 1 is the highest.
NORMAL = 2
# Hello itself never changes, so that every version can tell that the other is another.
VERSION = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of a stub."""

    id: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The executor's answer; with it comes the page that says how much work it holds.

    Attributes:
        lanes: how many runs it executes at once.
    """

    id: int
    version: int
    device: str
    lanes: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Map an arena; the descriptor of its memfd comes with the message."""

    id: int
    arena: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    """Forget an arena once the runs that use it are done."""

    id: int
    arena: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load a model file, or share it when some stub has loaded it before.

    Attributes:
        served_as: the model that it is for, by the name that it has in metrics.
    """

    id: int
    source: GraphSource
    served_as: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The graph is ready; it stays loaded until the connection closes."""

    id: int
    graph: int
    signature: Signature
    shape_policy: ShapePolicy
    engine: str
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """Make ready for these sets of input shapes, all at once; each is prepared afterwards."""

    id: int
    graph: int
    shapes: tuple[dict[str, Shape], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepStates:
    """Keep the states of up to `count` sequences for this connection; they end with it.

    Attributes:
        batched: tensors begin with a batch dimension.
        hidden: outputs that are only states and are not sent.
    """

    id: int
    graph: int
    states: tuple[State, ...]
    count: int
    batched: bool
    hidden: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainTensors:
    """Let runs of a graph retain tensors on the device, for runs of all graphs of one owner.

    They end with the owner's last connection.

    Attributes:
        buffer_bytes: bytes of tensors to set memory aside for.
    """

    id: int
    graph: int
    owner: str
    buffer_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMemory:
    """Where tensors are retained.

    Attributes:
        name: graphs that name the same one may take each other's tensors; "": nothing stays.
        alignment: in bytes; only tensors that begin and end at multiples of it can be taken.
    """

    id: int
    name: str
    alignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeTensors:
    """Forget tensors that stay on the device; sent when no run that takes them is in flight."""

    id: int
    graph: int
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareInput:
    """A synthetic input: every element is `fill`."""

    name: str
    dtype: str
    shape: Shape
    fill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Compile for these shapes if the engine does that, and time `repeats` runs: the shortest.

    Attributes:
        alone: nothing else is measured meanwhile, and what is found out is remembered.
    """

    id: int
    graph: int
    inputs: tuple[PrepareInput, ...]
    repeats: int
    alone: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The measured cost of one run; `cached` when another stub had it measured before.

    Attributes:
        outputs: what shape each output of the run had, by name.
    """

    id: int
    cost_ns: int
    workspace_bytes: int
    cached: bool
    outputs: dict[str, Shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRef:
    """Where a tensor lies in an arena: C order, `nbytes` from `offset`; BYTES serialised."""

    name: str
    dtype: str
    shape: Shape
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillRange:
    """Bytes of an arena that a run may fill with outputs whose shapes it alone knows."""

    offset: int = 0
    nbytes: int = 0


# A run that has none: its message need not make one.
NO_SPILL = SpillRange()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows:
    """Neighbouring rows of a tensor that stays on the device.

    Attributes:
        length: the real size of their first dimension; 1 where they have none.
    """

    key: int
    first: int
    count: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherInput:
    """An input that is made on the device, of rows that earlier runs have left there.

    Attributes:
        shape: padding included; rows behind the last one given repeat the first.
        fill: the byte that padding consists of.
    """

    name: str
    dtype: str
    shape: Shape
    fill: int
    rows: tuple[DeviceRows, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainOutput:
    """An output that stays on the device under a key, until that is freed.

    Attributes:
        shape: padding included.
        also_to_host: it comes to the arena as well.
    """

    name: str
    dtype: str
    shape: Shape
    key: int
    also_to_host: bool


@dataclass(slots=True, kw_only=True)
class Run:
    """Run a graph on tensors in an arena.

    Neither it nor `Done` is changed, and neither is frozen: each would take 3 us more to make then.

    A stub writes it when it stages the tensors; `InFlight.submit` says of which connection it is.

    Attributes:
        outputs: where to put those whose shape is known beforehand; the `unrequested` have no
            place.
        deadline_ns: CLOCK_MONOTONIC; a run not started by then fails. 0 is no deadline.
        priority: 1 is the highest.
        solo: nothing else runs meanwhile, and `Started` is sent first: a run that was in flight
            when an executor died is repeated so, and if this one dies too it is clear over what.
        slots: where the state of each real row lies; empty for graphs without.
        starting: those of them whose state starts with its initial value.
        rows: rows of the batch, padding included; only read where there are slots.
        cost_ns: what the stub expects the run to cost; counts as outstanding until it has ended.
        gathered, retained: inputs made of what is on the device, and outputs that stay there.
        bucket: rows and sizes that it runs at, `real_rows` of them requests'; for the timeline.
        awaited: the stub sends nothing but `Cancel` before this is answered, so the thread that has
            read it may run it.
        trial: outside of traffic, to see whether the graph takes it; failures are logged as detail.
        spill: for outputs whose shape is not known; too much for it comes in a segment of its own.
    """

    id: int
    graph: int
    arena: int
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    deadline_ns: int = 0
    priority: int = NORMAL
    solo: bool = False
    slots: tuple[int, ...] = ()
    starting: tuple[int, ...] = ()
    rows: int = 0
    cost_ns: int = 0
    gathered: tuple[GatherInput, ...] = ()
    retained: tuple[RetainOutput, ...] = ()
    unrequested: tuple[str, ...] = ()
    bucket: Shape = ()
    real_rows: int = 0
    awaited: bool = False
    trial: bool = False
    spill: SpillRange = NO_SPILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Drop the run with the id `run`, if it has not begun; it fails with `Cancelled` then."""

    id: int
    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The solo run with this id begins now; its `Done` or `Failed` follows."""

    id: int


@dataclass(slots=True, kw_only=True)
class Done:
    """A run's outputs.

    Attributes:
        settled: names of those that lie where the run's message said.
        spilled: those whose shape was not known; they lie in the segment that comes along, and
            in the run's spill range where none does.
        queue_ns: how long the run waited for its turn.
        held_up_ns: for how much of that a lane was free and its workspace was not.
        states: the shape of one row of each state as it is now, by the name of its input; only of
            those whose sizes vary.
        alone: nothing else ran or waited when it began, so it may have had all of the device.
    """

    id: int
    settled: tuple[str, ...]
    spilled: tuple[TensorRef, ...] = ()
    queue_ns: int
    run_ns: int
    held_up_ns: int = 0
    states: dict[str, Shape] = field(default_factory=dict)
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect:
    """Ask what the executor holds."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the executor holds, and how much memory its device has left.

    Attributes:
        graphs: how many are loaded.
        holders: how many connections hold them, summed over all graphs.
        prepared: how many shapes are prepared, summed likewise.
        evictions: graphs that no connection held and that were closed to make room for another.
        kept_tensors: how many tensors stay on the device between runs now.
        kept_bytes: the device memory that is set aside for such.
        defects: what did not agree when ranges, leases and graphs were recounted; nothing should.
        chip: what the device computes with; see `Device`.
    """

    id: int
    device: str
    connections: int
    graphs: int
    holders: int
    prepared: int
    free_bytes: int
    total_bytes: int
    pool: PoolFigures
    evictions: int
    defects: tuple[str, ...]
    kept_tensors: int = 0
    kept_bytes: int = 0
    chip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRequest:
    """Ask for the runs that ended after the one with the number `after`; 0: for all kept ones."""

    id: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A run that has ended, or a preparation. Times are CLOCK_MONOTONIC.

    Attributes:
        number: counts the runs of this executor, by their ends, from 1.
        model: the name that it was loaded under; its file where the stub gave none.
        bucket: rows and sizes; empty for a preparation.
        lane: the name of the thread that ran it.
        came_ns: when the executor received it.
        held_up_ns: for how much of its waiting a lane was free and its workspace was not.
        error: a class name of `ge_backend.errors`; "" if it went well.
    """

    number: int
    model: str
    bucket: Shape
    real_rows: int
    lane: str
    came_ns: int
    started_ns: int
    ended_ns: int
    held_up_ns: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Some of the runs that were asked for, the oldest first.

    Attributes:
        missed: how many are kept no more.
        last: the number of the newest run; ask again until `runs` has it.
    """

    id: int
    runs: tuple[PastRun, ...]
    missed: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenService:
    """Share a service with all who name the same kind and key, or start it.

    Attributes:
        kind: a key of `SERVICES`.
        key: tells this model's service from others of the kind.
    """

    id: int
    kind: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Something to or from a service; on the socket its body is bytes as they are, not JSON."""

    id: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ok:
    """Done, nothing to say."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The request with this id failed; `error` is a class name of `ge_backend.errors`."""

    id: int
    error: str
    message: str


AboutGraph = Run | Prepare | Compile | KeepStates | RetainTensors | FreeTensors
Message = (
    Hello
    | Welcome
    | Attach
    | Detach
    | Load
    | Loaded
    | Compile
    | KeepStates
    | RetainTensors
    | TensorMemory
    | FreeTensors
    | Prepare
    | Prepared
    | Run
    | Cancel
    | Started
    | Done
    | Inspect
    | Report
    | HistoryRequest
    | History
    | OpenService
    | Post
    | Ok
    | Failed
)

# What is said of a run in the stub's own process, and all outputs by name, which are the caller's;
# or the error, as `Graph.run` raises it, or that its time was over before it began.
DirectOutcome: TypeAlias = tuple[Done, dict[str, Array]] | GeError
