"""The tables of all settings: keys, defaults, choices, and what each does.

`model.py` reads them, `docs/configuration.md` is generated from them, and an unknown key is
answered with them.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    "MOST_LANES",
    "MOST_LENGTH",
    "MOST_REPEATS",
    "MOST_THREADS",
    "OF_FUSED",
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
MOST_THREADS = 4096
# Runs of a device at once: each is a thread, and what a run holds.
MOST_LANES = 1024
# A bucket that is run more often would not be measured better.
MOST_REPEATS = 10_000
# What serving takes for granted of a model; docs/tested.md says what each is.
ASSUMPTIONS = ("axes", "outputs", "rows", "padding", "states", "engine", "precision")
# A size in a bucket; see `buckets.strategies`.
MOST_LENGTH = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key: its default, the values it takes (empty: any), and what it does.

    `variable` names the environment variable that sets it machine-wide, "" where none does.
    """

    key: str
    help: str
    default: str = ""
    choices: tuple[str, ...] = ()
    variable: str = ""


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
        help="The device that runs the model: `cpu`, `npu`, `cuda:1` (or `null`, which computes "
        "nothing). Without a number the first one. Default: `npu` where `device_ids` are given.",
    ),
    Setting(
        key="device_ids",
        help="Several devices of the kind that `device` names: `0,1`. Each batch is spread over "
        "them by the cost of its parts and by what else they have to do. Without effect where "
        "`GE_DEVICE` sends the model to a `cpu` or to one numbered device.",
    ),
    Setting(
        key="lanes",
        default="0",
        variable="GE_LANES",
        help="How many runs a device executes at once; 0: as many as suit it (on a CPU its cores, "
        "else 2). Models share their device's lanes: whichever opens it decides. "
        f"At most {MOST_LANES}.",
    ),
    Setting(
        key="executor",
        default="auto",
        choices=("auto", "process", "inline"),
        variable="GE_EXECUTOR",
        help="Where the model runs. `process`: one executor process per device, shared by all "
        "models and instances, and started anew if an engine crashes. `inline`: inside the "
        "instance's own process, which saves the way to the other one (0.2 ms a request), shares "
        "nothing, and ends with the engine if that crashes. `auto`: `inline` for a model of one "
        "instance on a CPU that asks for nothing that models share there (`lanes`, `priority`, "
        "`GE_WORKSPACE_POOL`, `GE_EXECUTOR_MEMORY`), else `process`, as for models that generate "
        "text (docs/from_python_model.md).",
    ),
    Setting(
        key="fuse",
        help="The name of an ensemble in the same model repository: its steps run inside this "
        "model, each in its own buckets, and the tensors between them never go through the host "
        "(docs/ensembles.md). This model needs no model file then, only an empty folder `1`.",
    ),
    Setting(
        key="precision",
        default="origin",
        choices=("origin", "fp32", "bf16", "fp16", "int8"),
        help="The arithmetic of the graph. `origin` is what the model file says; lower ones trade "
        "accuracy for speed where engine and device can (docs/precision.md has both, measured). "
        "`fp32` is for checkpoints that are stored in less, encoders' and text generators'. "
        "`int8` multiplies by weights of eight bits, on a CPU by OpenVINO, text generators' too.",
    ),
    Setting(
        key="engine",
        default="first",
        choices=("first", "auto", *engine_names(), VLLM),
        help="What runs the model file, where several engines can. `first`: the first one that is "
        "installed and can compute in `precision`, in the order of the table below. "
        "`auto`: the same; `ge-backend tune --measure` finds the fastest. "
        "A model that generates text has `openvino`, `torch` and `vllm` (docs/generation.md).",
    ),
    Setting(
        key="threads",
        default="0",
        help="CPU threads of one run. 0: one, and all cores for runs that have been alone on the "
        "device for a while, where that is faster; the runs themselves find that out. At most "
        f"{MOST_THREADS}.",
    ),
    Setting(
        key="assume",
        help="What is taken as given of this model and not tested before it is served, such as "
        f"`rows,padding`; of {', '.join(f'`{name}`' for name in ASSUMPTIONS)} "
        "(docs/tested.md). Default: nothing.",
    ),
    Setting(
        key="overflow",
        default="unpadded",
        choices=("unpadded", "error", "extend"),
        help="What happens to a request longer than the largest bucket. `unpadded`: run at its own "
        "shape (counted in ge_unplanned_shapes_total) where the engine can, else refused. "
        "`error`: refused. `extend`: as `unpadded`, and buckets for it are prepared in the "
        "background, within `max_elements` and `max_graphs`, so that the next one finds them.",
    ),
    Setting(
        key="buckets",
        help="`file:NAME` reads whole buckets from a file, relative to the model's folder, "
        "instead of making them from `buckets.<axis>`: one `(rows, size, …)` per line, where "
        "each place is a number, a list or a `range(a, b, step)`; `#` begins a comment.",
    ),
    Setting(
        key="max_elements",
        default="0",
        help="The most elements (rows times sizes) that one bucket may have, and one run of "
        "several rows where the engine takes any shape; 0 is no limit.",
    ),
    Setting(
        key="max_graphs",
        default="0",
        help="The most buckets that may be prepared; those that recorded traffic needs least are "
        "left out, sizes stay covered. 0 is no limit.",
    ),
    Setting(
        key="ragged",
        default="auto",
        choices=("auto", "pad", "concatenate"),
        help="What is done with inputs marked `allow_ragged_batch`: padded to a common length, or "
        "concatenated flat as Triton's C++ backends do. `auto`: concatenated if the "
        "configuration has `batch_input` or `batch_output`, else padded.",
    ),
    Setting(
        key="max_length",
        default="512",
        help="The largest bucket of a ragged axis for which neither `buckets.<axis>` nor the model "
        "file names a limit.",
    ),
    Setting(
        key="warmup",
        default="background",
        choices=("background", "on", "off"),
        variable="GE_WARMUP",
        help="When buckets are measured. `background`: the model is READY as soon as it answers, "
        "and goes by costs of an earlier start, or by estimates, until they are measured beside "
        "serving. `on`: before it is READY, as always where an engine has static shapes, sequences "
        "have states, or a workspace pool is planned. `off`: never, the planner goes by element "
        "counts; engines with static shapes prepare their buckets anyway.",
    ),
    Setting(
        key="warmup_repeats",
        default="3",
        help="How many runs per bucket are measured; the shortest counts. Serving corrects it. "
        f"At most {MOST_REPEATS}.",
    ),
    Setting(
        key="warmup_budget_s",
        default="0",
        help="Seconds after which warm-up measures no further bucket, largest first; their costs "
        "are then estimated. Engines with static shapes still prepare them all. 0 is no limit.",
    ),
    Setting(
        key="learn",
        default="record",
        choices=("off", "record", "serve"),
        help="Whether real sizes are counted (`record`, for `ge-backend tune`), and whether new "
        "buckets are made from them and swapped in while serving (`serve`).",
    ),
    Setting(
        key="learn_every_s",
        default="60",
        help="With `learn: serve`, the seconds between two looks at the traffic.",
    ),
    Setting(
        key="early_reply",
        default="auto",
        choices=("auto", "never"),
        help="Whether requests of a sub-batch that ends well before its batch are answered at "
        "once. It costs 0.1-0.2 ms per reply, so `auto` does it where more than that is gained.",
    ),
    Setting(
        key="score_activation",
        default="sigmoid",
        choices=("sigmoid", "identity"),
        help="Of a model that ranks pairs of texts, an ensemble of Triton's own among them: what "
        "OpenAI's API makes scores of its numbers by (docs/openai.md). `identity`: they are scores "
        "already.",
    ),
    Setting(
        key="priority",
        default="2",
        choices=("1", "2", "3"),
        help="Which of the models that wait for a device goes first: 1 is the highest, as in "
        "Triton's `priority_levels` (a request's own priority is not shown to Python). Models of "
        "one priority share the device by time; a run is passed by 0.2 s of each model's runs per "
        "level of difference, so none waits for ever.",
    ),
    Setting(
        key="max_queue_size",
        default="0",
        help="The most requests that may wait for an instance while it serves a batch; further "
        "ones are refused at once (UNAVAILABLE). 0 is no limit. With this or a default timeout "
        "requests wait in the backend instead of in Triton, whose own queue policies make it "
        "stall (docs/scheduling.md). What a stub holds when it dies is never answered, so have "
        "two instances at least, and clients with a time limit (docs/reliability.md).",
    ),
    Setting(
        key="default_timeout_microseconds",
        default="0",
        help="How long a request may wait before it begins to run, if its client sets no shorter "
        "`timeout`; after that it is refused (UNAVAILABLE). 0 is no limit.",
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
        help="Tokens of prompts that one step takes at most, so that streams go on while a long "
        "prompt is read. `auto`: as many as let running streams keep `itl_target_ms`, by measured "
        "step times.",
    ),
    Setting(
        key="itl_target_ms",
        default="100",
        help="The time from one token of a stream to its next that `prefill_chunk: auto` keeps. "
        "Where more texts wait for their first token than for their next one, it is as many times "
        "longer, up to two; steps in which none waits for its next one are twice as long.",
    ),
    Setting(
        key="block_size",
        default="32",
        help="Tokens of one block of the key-value cache. OpenVINO takes 32 and no other number.",
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
        choices=("model", "bf16"),
        help="What keys and values are kept in. `model`: as the weights. `bf16`: in half the "
        "memory where those are FP32; attention is then computed in it, the rest as before.",
    ),
    Setting(
        key="scheduling",
        default="fcfs",
        choices=("fcfs", "sjf", "priority"),
        help="The order of the texts that wait: first come first served, the shortest prompt and "
        "limit first, or by the request's own `priority` (the smaller the earlier). Waiting "
        "counts for them in time, so none waits for ever.",
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
        help="What becomes of the cache of a text that has to make room: computed again later, or "
        "copied to host memory and back (`swap_bytes`), or whichever is measured to be cheaper.",
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
        help="Keep the keys and values of texts in blocks that are free otherwise, and compute "
        "a beginning that several prompts have in common once. A request may leave it out with its "
        "parameter `prefix_cache`, or share with those of its own `cache_salt` only.",
    ),
    Setting(
        key="speculation",
        default="off",
        choices=("off", "ngram", "model"),
        help="Whether several tokens of a text are guessed and verified in one step. `ngram`: the "
        "guess is what followed the same tokens earlier in prompt or output, which pays where "
        "text repeats itself: code that is edited, JSON, quotations. `model`: a smaller model "
        "guesses, the `speculative_model`. No text is changed by it.",
    ),
    Setting(
        key="speculative_model",
        help="For `speculation: model`: a folder in the model's own folder with a checkpoint that "
        "has the same vocabulary, such as `draft`. Its weights and its part of the cache are on "
        "the same device.",
    ),
    Setting(
        key="num_speculative_tokens",
        default="auto",
        help="How many guessed tokens of a text one step verifies, 1 to 15. `auto`: as many as are "
        "measured to pay, none where they do not.",
    ),
    Setting(
        key="lora_bytes",
        default="256MiB",
        help="Memory of the device for LoRA adapters, which lie in the folder `adapters` beside "
        "the checkpoint and are loaded when a request names one (`lora_name`). When it is full, "
        "those leave that were not used for longest. It is set aside where there are any at load.",
    ),
)

FAMILIES: tuple[Family, ...] = (
    Family(
        prefix="buckets.",
        placeholder="axis",
        help="The bucket sizes of an axis, `buckets.rows` and one per ragged axis: a list "
        "`16,32,64` or a strategy such as `exponential(16,16,256,6)`. A language model has the "
        "axes `batch`, `query` and `context` (in blocks of its cache).",
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
        help="An input of the graph that the backend makes when the client does not send it: "
        "`mask` (1 for real, 0 for padding), `lengths` (real length per row; `lengths:<axis>` "
        "where several axes are padded), `positions` (0, 1, 2, …), `zeros`, or a number that fills "
        "it, such as a sampling rate: `16000`. Well-known names (attention_mask, input_mask, "
        "input_lengths, position_ids, token_type_ids) need no entry.",
    ),
    Family(
        prefix="axes.",
        placeholder="tensor",
        help="Names for the dimensions of an input or output, batch included: `batch,length,384`. "
        "Axes of one name have one size; an output is cut along them. Needed only where the "
        "model file does not tell (it does for ONNX symbolic dimensions and torch.export).",
    ),
    Family(
        prefix="lengths.",
        placeholder="axis",
        help="The output that tells each row's real size along an axis of the outputs: one whole "
        "number per row, or a mask over the axis. Outputs are cut to it, per request. Needed only "
        "where that size does not follow from an input's, as the frames of a speech encoder do "
        "not.",
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
        help="For models that an NPU runs offline. `timeout_s`: how long one run may take, 60 "
        "seconds if not given; after that the device counts as failed, and its executor starts "
        "anew. `priority`: whose runs the device prefers where models share it, 0 (the first, "
        "default) to 7. `aipp`: a file beside a `model.om` with dynamic AIPP, which says what is "
        "done to its images (docs/compile.md).",
    ),
    Family(
        prefix="torch.",
        placeholder="option",
        help="For torch models on a GPU or an NPU. `mode`: `graphs` (default) captures each bucket "
        "as a device graph; `eager` runs operator by operator, at the rows' own sizes; `torchair`, "
        "on NPUs, lets Ascend's compiler make a program for each bucket (docs/devices.md).",
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
        help="For a `tokenizer.json`. `max_length`: the most tokens of a text, special ones "
        "included (default: what the file says). `overflow`: `truncate` (default), or `error` for "
        "a text that is longer. `pairs`: whether a second text comes with each, as "
        "`text_pair` (`false`). `add_special_tokens`: `true` (default) or `false`. `strip`, "
        "`lower_case`: whether white space around a text is left out, and whether it is put in "
        "lower case first, as sentence-transformers up to 5.3 does (`false`). `data_type`: `INT64` "
        "(default) or `INT32`.",
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
        help="The interpreter that runs the executors of models with `engine: vllm`; it must have "
        "vLLM. Default: `GE_PYTHON`.",
    ),
    Setting(
        key="library_path",
        variable="GE_LIBRARY_PATH",
        help="LD_LIBRARY_PATH for executors, which must not see the server's private libraries.",
    ),
    Setting(
        key="linger_s",
        default="3",
        variable="GE_EXECUTOR_LINGER_S",
        help="Seconds that an executor stays after its last model instance has left.",
    ),
    Setting(
        key="spare",
        default="auto",
        choices=("auto", "on", "off"),
        variable="GE_SPARE",
        help="Whether a spare executor waits beside each one, with the engines imported and no "
        "device, so that a restart is shorter: with torch 0.7 s instead of 3.1 s for 249 MiB of "
        "memory, with ONNX Runtime 0.1 s instead of 0.4 s for 35 MiB (`python -m "
        "benchmarks.bench_restart`; docs/reliability.md). `auto`: on machines with at least 4 "
        "usable cores and 16 GiB of memory.",
    ),
    Setting(
        key="run_timeout_s",
        default="300",
        variable="GE_RUN_TIMEOUT_S",
        help="Seconds that one run of a graph may take. After that its device counts as broken: "
        "the executor ends and is started anew, and what was not answered is repeated once, each "
        "run alone; one that is `inline` ends with its instance (docs/reliability.md). 0 is no "
        "limit. (An executor that hangs as a whole is found out in any case.)",
    ),
    Setting(
        key="workspace_pool",
        default="0",
        variable="GE_WORKSPACE_POOL",
        help="The scratch memory that all graphs of a device share, such as `12GiB`, `512MiB` or "
        "plain bytes, or one per device: `npu:0=12GiB,cuda=8GiB,2GiB` (one without a device is for "
        "all others). Graphs whose ranges of it overlap run in turn; one that needs more than all "
        "of it is refused at load. 0: no limit, no run waits.",
    ),
    Setting(
        key="executor_memory",
        default="0",
        variable="GE_EXECUTOR_MEMORY",
        help="Memory of the machine that an executor may have for itself, such as `8GiB`, or one "
        "per device as with `GE_WORKSPACE_POOL`: engines may grow with the shapes that come. At "
        "nine tenths it is said in the log; at the limit the executor is replaced: runs that have "
        "begun are answered, those that wait are repeated in the next one (live sequences lose "
        "their states). One that needs nine tenths for what it has loaded is not replaced. What "
        "it shares with stubs, and pages of files, do not count. 0: no limit.",
    ),
    Setting(
        key="keep_files",
        default="1GiB",
        variable="GE_KEEP_FILES",
        help="A loaded model's files are copied beside the executors' sockets "
        "(`GE_RUNTIME_DIR`) if they have at most this many bytes, so that what is served can be "
        "loaded again whatever becomes of them; all instances share one copy. Larger ones are "
        "linked, which outlives that another file takes their place, and not that they are "
        "written over. Where the file system shares blocks between files a copy of any size costs "
        "nothing. `0` copies nothing.",
    ),
    Setting(
        key="numpy_2",
        default="refuse",
        choices=("refuse", "allow"),
        variable="GE_NUMPY_2",
        help="Whether models load where the stub has numpy 2. The stub of Triton 2.51 was built "
        "for numpy 1 and misreads tensors silently with numpy 2; newer servers may not.",
    ),
    Setting(
        key="acl_config",
        variable="GE_ACL_CONFIG",
        help="A JSON file that executors on an NPU hand to `acl.init`: dumps, exception dumps, "
        "profiling (docs/devices.md). Default: none.",
    ),
    Setting(
        key="cache_dir",
        variable="GE_CACHE_DIR",
        help="Where measured costs, recorded traffic and compiled models are kept between starts; "
        "`off` keeps nothing. Default: `ge-backend` in `XDG_CACHE_HOME` or `~/.cache`; nothing is "
        "kept for a user without a home folder (`HOME` is `/`, or is unset and the user id has no "
        "name), as containers may have.",
    ),
)

# Keys in `parameters` that belong to the host or to its Python backend.
HOST_KEYS = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS", "TRITON_BATCH_STRATEGY_PATH")
HOST_PREFIXES = ("TRITON_", "MAX_BATCH_")

# What a model that generates text has no use for: it is not planned batch by batch, and its queue
# is `max_waiting_requests` long.
OF_GRAPHS = frozenset(
    {
        "overflow",
        "max_elements",
        "ragged",
        "max_length",
        "warmup_repeats",
        "warmup_budget_s",
        "learn",
        "learn_every_s",
        "early_reply",
        "max_queue_size",
        "default_timeout_microseconds",
    }
)

# What counts for a model that runs an ensemble; the rest is said of its steps.
OF_FUSED = frozenset(
    {
        "fuse",
        "executor",
        "early_reply",
        "max_queue_size",
        "default_timeout_microseconds",
        "score_activation",
    }
)


def without_effect(keys: Iterable[str], *, text: bool) -> list[str]:
    """Return those of the parameters of a model, of `text` or not, that are for the other kind."""
    others = OF_GRAPHS if text else {setting.key for setting in GENERATION_SETTINGS}
    return sorted(others.intersection(keys))
