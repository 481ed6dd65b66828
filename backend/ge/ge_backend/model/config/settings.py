"""The tables of all settings: keys, defaults, choices, and what each does.

`model.py` reads them, `docs/configuration.md` is generated from them, and an unknown key is
answered with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ge_backend.model.config.engine_table import ENGINES, engine_names

__all__ = [
    "ASSUMPTIONS",
    "COMPILE_PREFIXES",
    "ENGINE_PREFIXES",
    "FAMILIES",
    "GENERATION_SETTINGS",
    "GE_LEVELS",
    "HOST_KEYS",
    "HOST_PREFIXES",
    "MACHINE_SETTINGS",
    "MAX_LANES",
    "MAX_LENGTH",
    "MAX_THREADS",
    "OF_FUSED",
    "REMOVED",
    "SETTINGS",
    "VLLM",
    "Family",
    "Setting",
    "without_effect",
]

# The engine that runs checkpoints beside ours.
VLLM = "vllm"
# What may stand before `ge.<option>` in the C++ GE backend; here it means the same at each level.
GE_LEVELS = ("session.", "graph.", "global.")
# CPU threads of one run, in a configuration and in a message to an executor.
MAX_THREADS = 4096
# Runs of a device at once: each is a thread, and what a run holds.
MAX_LANES = 1024
# What serving takes for granted of a model; docs/tested.md says what each is.
ASSUMPTIONS = ("axes", "outputs", "rows", "padding", "states", "engine", "precision")
# A size in a bucket; see `buckets.strategies`.
MAX_LENGTH = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key: its default, the values it takes (empty: any), and what it does.

    Attributes:
        variable: the environment variable that sets it machine-wide, "" where none does.
        text: models that generate text have a use for it, too: they are not planned batch by batch,
            and their queue is `max_waiting_requests` long.
        fused: it counts for a model that runs an ensemble; the others are said of its steps.
    """

    key: str
    help: str
    default: str = ""
    choices: tuple[str, ...] = ()
    variable: str = ""
    text: bool = True
    fused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Keys that go on with a name: `pad.input_ids`."""

    prefix: str
    placeholder: str
    help: str


SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="device",
        default="cpu",
        variable="GE_DEVICE",
        help="The device that runs the model: `cpu`, `npu`, `cuda:1`. Without a number the first "
        "one. Default: `npu` where `device_ids` are given.",
    ),
    Setting(
        key="device_ids",
        help="Several devices of the kind that `device` names, such as `0,1`; each batch is "
        "spread over them. Without effect where `GE_DEVICE` names one device.",
    ),
    Setting(
        key="lanes",
        default="0",
        variable="GE_LANES",
        help="How many runs a device executes at once; 0: as many as suit it (on a CPU its cores, "
        "`inline` fewer; else 2). Models share their device's lanes: whichever opens it decides. "
        f"At most {MAX_LANES}.",
    ),
    Setting(
        key="executor",
        fused=True,
        default="auto",
        choices=("auto", "process", "inline"),
        variable="GE_EXECUTOR",
        help="`process`: one executor per device, shared by all models and instances, and "
        "started anew if an engine crashes. `inline`: inside the instance's own process, "
        "faster, which shares nothing and ends with a crash. `auto`: `inline` for "
        "one instance on a CPU that shares nothing (`lanes`, `priority`, a pool, a limit of "
        "memory), else `process`.",
    ),
    Setting(
        key="fuse",
        fused=True,
        help="The name of an ensemble in the same model repository: its steps run inside this "
        "model (docs/ensembles.md).",
    ),
    Setting(
        key="precision",
        default="origin",
        choices=("origin", "fp32", "bf16", "fp16", "int8"),
        help="The arithmetic of the graph. `origin` is what the model file says; lower ones "
        "trade accuracy for speed where engine and device can, `int8` by weights of eight "
        "bits (docs/precision.md). `fp32` is for checkpoints that are stored in less.",
    ),
    Setting(
        key="engine",
        default="first",
        choices=("first", "auto", *engine_names(), VLLM),
        help="What runs the model file, where several engines can: the `first` that is installed "
        "and has the precision, in the order of the table below, or the one that is named. "
        "`auto` is as `first`; `ge-backend tune --measure` finds the fastest.",
    ),
    Setting(
        key="threads",
        default="0",
        help="CPU threads of one run. 0: one, and all cores for runs that have been alone on the "
        "device for a while, where that is faster; the runs themselves find that out. With several "
        f"`inline` instances each has its share of the cores. At most {MAX_THREADS}.",
    ),
    Setting(
        key="assume",
        help="What is taken as given of this model and not tested before it is served, such as "
        f"`rows,padding`; of {', '.join(f'`{name}`' for name in ASSUMPTIONS)} "
        "(docs/tested.md). Default: nothing.",
    ),
    Setting(
        key="overflow",
        text=False,
        default="unpadded",
        choices=("unpadded", "error", "extend"),
        help="A request longer than the largest bucket is run at its own shape where the engine "
        "can (`unpadded`), refused (`error`), or run so, and buckets for it are prepared in "
        "the background (`extend`).",
    ),
    Setting(
        key="buckets",
        help="`file:NAME` reads whole buckets from a file in the model's folder, one `(rows, "
        "size, …)` per line (docs/buckets.md).",
    ),
    Setting(
        key="max_elements",
        text=False,
        default="0",
        help="The most elements (rows times sizes) of one bucket, and of a run of several rows: "
        "bounds scratch memory, and what a short request waits for a long run. 0: no limit.",
    ),
    Setting(
        key="max_graphs",
        default="0",
        help="The most buckets that may be prepared; those that recorded traffic needs least are "
        "left out. 0: no limit.",
    ),
    Setting(
        key="ragged",
        text=False,
        default="auto",
        choices=("auto", "pad", "concatenate"),
        help="Inputs marked `allow_ragged_batch` are padded to a common length, or concatenated "
        "flat as in Triton's C++ backends. `auto`: concatenated if there is a `batch_input` "
        "or `batch_output`.",
    ),
    Setting(
        key="max_length",
        text=False,
        default="512",
        help="The largest bucket of a ragged axis for which neither `buckets.<axis>` nor the model "
        "file names a limit.",
    ),
    Setting(
        key="warmup",
        default="background",
        choices=("background", "on", "off"),
        variable="GE_WARMUP",
        help="When buckets are measured. `background`: beside serving, `on`: before the model is "
        "READY, `off`: never (docs/buckets.md).",
    ),
    Setting(
        key="learn",
        text=False,
        default="record",
        choices=("off", "record", "serve"),
        help="Whether real sizes are counted (`record`, for `ge-backend tune`), and whether new "
        "buckets are made from them and swapped in while serving (`serve`).",
    ),
    Setting(
        key="response_parameters",
        fused=True,
        default="off",
        choices=("on", "off"),
        help="Whether responses say in their parameters how they came about: `bucket`, `rows` and "
        "`padding` of the runs of a graph (docs/buckets.md), or what became of a text "
        "(docs/generation.md). From Triton 2.55 (25.02) on; refused before.",
    ),
    Setting(
        key="score_activation",
        fused=True,
        default="sigmoid",
        choices=("sigmoid", "identity"),
        help="Of a model that ranks pairs of texts: what OpenAI's API makes scores of its "
        "numbers by. `identity`: they are scores already.",
    ),
    Setting(
        key="priority",
        default="2",
        choices=("1", "2", "3"),
        help="Which of the models that wait for a device goes first: 1 is the highest; none waits "
        "for ever (docs/scheduling.md).",
    ),
    Setting(
        key="max_queue_size",
        text=False,
        fused=True,
        default="0",
        help="The most requests that may wait for an instance while it serves a batch; further "
        "ones are refused (UNAVAILABLE). 0: no limit. Have two instances then, and clients with "
        "a time limit (docs/scheduling.md).",
    ),
    Setting(
        key="default_timeout_microseconds",
        text=False,
        fused=True,
        default="0",
        help="How long a request may wait before it begins to run, if its client sets no shorter "
        "`timeout`; then it is refused (UNAVAILABLE). 0: no limit.",
    ),
)

# Of models that generate text; the names are vLLM's where it has one.
GENERATION_SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="max_num_batched_tokens",
        default="2048",
        help="Tokens that one step of a language model computes at most.",
    ),
    Setting(
        key="max_num_seqs",
        default="64",
        help="Texts that are in the making at once; others wait.",
    ),
    Setting(
        key="prefill_chunk",
        default="auto",
        help="Tokens of prompts that one step takes at most. `auto`: as many as "
        "`itl_target_ms` lets them.",
    ),
    Setting(
        key="itl_target_ms",
        default="100",
        help="What prompts add to the time from one token of a stream to its next at most, with "
        "`prefill_chunk: auto`; half as much again where more texts wait for their first token.",
    ),
    Setting(
        key="block_size",
        default="32",
        help="Tokens of one block of the key-value cache; prompts share whole blocks. OpenVINO "
        "takes 32 and no other number.",
    ),
    Setting(
        key="kv_cache_bytes",
        default="0",
        help="Memory of the key-value cache, such as `2GiB`. 0: what the device has left; on a "
        "CPU a bounded share of what is available.",
    ),
    Setting(
        key="kv_cache_dtype",
        default="model",
        choices=("model", "bf16", "int8"),
        help="What keys and values are kept in. `model`: as the weights. `bf16`: in half the "
        "memory where those are FP32. `int8`: in some 9 bits a number, by OpenVINO on a CPU.",
    ),
    Setting(
        key="stream_interval",
        default="1",
        help="Tokens that a stream's response brings, but for the first one, which comes at once. "
        "More take less of the host's time for each.",
    ),
    Setting(
        key="scheduling",
        default="fcfs",
        choices=("fcfs", "sjf", "priority"),
        help="The order of the texts that wait: first come first served, the shortest prompt and "
        "limit first, or by the request's own `priority` (the smaller the earlier). None "
        "waits for ever.",
    ),
    Setting(
        key="max_waiting_requests",
        default="1024",
        help="Further requests are refused at once (UNAVAILABLE).",
    ),
    Setting(
        key="preemption",
        default="recompute",
        choices=("recompute", "swap", "auto"),
        help="A text that has to make room is computed again later, or copied to host memory and "
        "back (`swap_bytes`). `auto`: whichever is measured to be cheaper.",
    ),
    Setting(
        key="swap_bytes",
        default="0",
        help="Host memory for `preemption: swap`, such as `1GiB`; what finds no room there is "
        "computed again.",
    ),
    Setting(
        key="prefix_cache",
        default="on",
        choices=("on", "off"),
        help="Whether a beginning that several prompts have in common is computed once "
        "(docs/generation.md).",
    ),
    Setting(
        key="speculation",
        default="off",
        choices=("off", "ngram", "model"),
        help="Whether several tokens of a text are guessed and verified in one step: from what "
        "followed the same tokens earlier (`ngram`), or by the `speculative_model`.",
    ),
    Setting(
        key="speculative_model",
        help="For `speculation: model`: a folder in the model's own folder with a checkpoint of "
        "the same vocabulary, such as `draft`.",
    ),
    Setting(
        key="num_speculative_tokens",
        default="auto",
        help="How many guessed tokens of a text one step verifies, 1 to 15. `auto`: as many as "
        "are measured to pay.",
    ),
    Setting(
        key="lora_bytes",
        default="256MiB",
        help="Memory of the device for LoRA adapters, set aside where there are any at load; when "
        "it is full, those leave that were not used for longest.",
    ),
)

FAMILIES: tuple[Family, ...] = (
    Family(
        prefix="buckets.",
        placeholder="axis",
        help="The sizes of an axis, `buckets.rows` and one per ragged axis: a list `16,32,64` or "
        "a rule such as `exponential(16,16,256,6)`. A language model has the axes `batch`, "
        "`query` and `context` (in blocks).",
    ),
    Family(
        prefix="pad.",
        placeholder="tensor",
        help="The value that fills the padding of an input, or of an output that has `lengths`; "
        "if not given, what the model file says, else 0.",
    ),
    Family(
        prefix="generate.",
        placeholder="input",
        help="An input that the backend makes when the client does not send it: `mask`, `lengths`, "
        "`positions`, `zeros`, or a number. Well-known names need no entry (docs/ragged.md).",
    ),
    Family(
        prefix="axes.",
        placeholder="tensor",
        help="Names for the dimensions of a tensor, batch included: `batch,length,384`. Axes of "
        "one name have one size; an output is cut along them. Needed where the model file "
        "does not tell.",
    ),
    Family(
        prefix="lengths.",
        placeholder="axis",
        help="The output that tells each row's real size along an axis of the outputs: one whole "
        "number per row, or a mask over the axis. Needed where that size does not follow "
        "from an input's.",
    ),
    Family(
        prefix="atc.",
        placeholder="option",
        help="An option of CANN's compiler, which makes an ONNX model ready for an NPU: "
        "`atc.op_select_implmode` is `atc --op_select_implmode` (docs/compile.md).",
    ),
    Family(
        prefix="ge.",
        placeholder="option",
        help="The same by the name that the C++ GE backend has for it, such as `ge.aicoreNum`.",
    ),
    *(Family(prefix=p, placeholder="ge.option", help="As `ge.<option>`.") for p in GE_LEVELS),
    Family(
        prefix="npu.",
        placeholder="option",
        help="For models that an NPU runs offline. `timeout_s` (60): how long one run may take "
        "before the device counts as failed. `priority`: 0 (the first, default) to 7. "
        "`aipp`: a file beside a `model.om` with dynamic AIPP (docs/compile.md).",
    ),
    Family(
        prefix="torch.",
        placeholder="option",
        help="For torch models on a GPU or an NPU. `mode`: `graphs` (default) captures each "
        "bucket; `eager` runs at the rows' own sizes; `torchair`, on NPUs, compiles each "
        "bucket (docs/devices.md).",
    ),
    Family(
        prefix="vllm.",
        placeholder="argument",
        help="An argument of `vllm serve` under its own name, such as `vllm.max_model_len` or "
        "`vllm.tensor_parallel_size`; a switch is `true` or `false`. For `engine: vllm`.",
    ),
    Family(
        prefix="tokenizer.",
        placeholder="option",
        help="For a `tokenizer.json`: `max_length`, `overflow` (`truncate`, `error`), `pairs`, "
        "`add_special_tokens`, `strip`, `lower_case`, `data_type` (docs/ensembles.md).",
    ),
)
# Those of them that only an engine understands; the first ones only a compiler.
COMPILE_PREFIXES = ("atc.", "ge.", *GE_LEVELS)
ENGINE_PREFIXES = (
    *COMPILE_PREFIXES,
    "npu.",
    f"{VLLM}.",
    *dict.fromkeys(row.options for row in ENGINES if row.options),
)

MACHINE_SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="runtime_dir",
        variable="GE_RUNTIME_DIR",
        help="Private folder for the executors' sockets. Default: one per server under the "
        "system's temporary folder.",
    ),
    Setting(
        key="python",
        variable="GE_PYTHON",
        help="The interpreter that runs executors; it must have the engines. Default: the one "
        "whose site-packages the stub uses.",
    ),
    Setting(
        key="vllm_python",
        variable="GE_VLLM_PYTHON",
        help="The interpreter that runs models with `engine: vllm`; it must have vLLM. Default: "
        "`GE_PYTHON`.",
    ),
    Setting(
        key="library_path",
        variable="GE_LIBRARY_PATH",
        help="LD_LIBRARY_PATH for executors, for a toolkit that is not where the system looks, "
        "such as CANN: they do not see the server's.",
    ),
    Setting(
        key="linger_s",
        default="3",
        variable="GE_EXECUTOR_LINGER_S",
        help="Seconds that an executor keeps a graph that no instance holds any more, and itself "
        "after its last instance. More: a model that is unloaded and loaded again finds its "
        "weights there. Less: the device's memory is free for others sooner.",
    ),
    Setting(
        key="spare",
        default="auto",
        choices=("auto", "on", "off"),
        variable="GE_SPARE",
        help="Whether a spare executor waits beside each one, which takes memory and shortens a "
        "restart (docs/reliability.md). `auto`: on machines with at least 4 usable cores and "
        "16 GiB of memory.",
    ),
    Setting(
        key="run_timeout_s",
        default="300",
        variable="GE_RUN_TIMEOUT_S",
        help="Seconds that one run of a graph may take; then its device counts as broken: the "
        "executor is started anew, and what was not answered is repeated once. 0: no limit.",
    ),
    Setting(
        key="workspace_pool",
        default="0",
        variable="GE_WORKSPACE_POOL",
        help="The scratch memory that all graphs of a device share, such as `12GiB`, or one per "
        "device: `npu:0=12GiB,cuda=8GiB,2GiB`. Graphs whose ranges overlap run in turn; one "
        "that needs more than all of it is refused. 0: no limit.",
    ),
    Setting(
        key="executor_memory",
        default="0",
        variable="GE_EXECUTOR_MEMORY",
        help="Memory that an executor may have for itself, such as `8GiB`, or one per device as "
        "with `GE_WORKSPACE_POOL`. At the limit it is replaced; live sequences lose their "
        "states. 0: no limit.",
    ),
    Setting(
        key="keep_files",
        default="1GiB",
        variable="GE_KEEP_FILES",
        help="A loaded model's files are copied to `GE_RUNTIME_DIR` if they have at most this "
        "many bytes, so that they can be loaded again whatever becomes of them; larger ones "
        "are linked (docs/reliability.md). `0` copies nothing.",
    ),
    Setting(
        key="numpy_2",
        default="refuse",
        choices=("refuse", "allow"),
        variable="GE_NUMPY_2",
        help="Whether models load where the stub has numpy 2, which stubs before Triton 2.52 "
        "(24.11) silently misread. `ge-backend serve` allows it where it knows the release.",
    ),
    Setting(
        key="acl_config",
        variable="GE_ACL_CONFIG",
        help="A JSON file that executors on an NPU hand to `acl.init` (docs/devices.md).",
    ),
    Setting(
        key="cache_dir",
        variable="GE_CACHE_DIR",
        help="Where measured costs, recorded traffic and compiled models are kept; `off` keeps "
        "nothing. Default: `ge-backend` in `XDG_CACHE_HOME` or `~/.cache`; nothing without "
        "a home folder.",
    ),
)

# Keys in `parameters` that belong to the host or to its Python backend.
HOST_KEYS = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS", "TRITON_BATCH_STRATEGY_PATH")
HOST_PREFIXES = ("TRITON_", "MAX_BATCH_")

OF_GRAPHS = frozenset(setting.key for setting in SETTINGS if not setting.text)
OF_FUSED = frozenset(setting.key for setting in SETTINGS if setting.fused)

# What there was once, and what became of it: a configuration that still has one is loaded, and the
# log says this of it. docs/configuration.md lists them.
REMOVED: Mapping[str, str] = {
    "warmup_repeats": "each bucket is measured three times, and serving corrects what that found",
    "warmup_budget_s": "`warmup: background` serves before buckets are measured, `warmup: off` "
    "measures none",
    "learn_every_s": "`learn: serve` looks at the traffic after 10 seconds, then after twice as "
    "long each time, once a minute at least",
    "early_reply": "requests whose part of a batch ends early are answered at once where that "
    "gains more than a reply of its own costs",
}


def without_effect(keys: Iterable[str], *, text: bool) -> list[str]:
    """Return those of the parameters of a model, of `text` or not, that are for the other kind."""
    others = OF_GRAPHS if text else {setting.key for setting in GENERATION_SETTINGS}
    return sorted(others.intersection(keys))
