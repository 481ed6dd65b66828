"""A stand-in for CANN's `atc`: it checks its command line as the real one does, or more strictly.

It writes a model that the simulator of `acl` runs if the ONNX file says which graph of the simulator
it is (`builders.simulated_onnx`), else one that says what it was made of. What it does wrong is told
by FAKE_ATC in its environment: `fails`, `crashes` halfway through its file, is `killed`, writes
`nothing`; or it `waits` until the file named by FAKE_ATC_UNTIL is there. `hosted` is a model of
which a part runs on the host, as of one with ranges. Each run is noted in FAKE_ATC_RUNS.
Source of rules and texts: CANN's ATC manual and error codes, see ge_backend/device/atc/options.py.
"""

import json
import os
import platform
import re
import signal
import sys
import time
from pathlib import Path

OPTIONS = """
ac_parallel_enable aicore_num allow_hf32 atomic_clean_policy buffer_optimize check_report
compression_optimize_conf core_type customize_dtypes debug_dir deterministic disable_reuse_memory
display_model_info dynamic_batch_size dynamic_dims dynamic_image_size enable_scope_fusion_passes
enable_single_stream enable_small_channel framework fusion_switch_file host_env_cpu host_env_os
input_format input_fp16_nodes input_shape input_shape_range insert_op_conf jit_compile keep_dtype
log model modify_mixlist oo_level op_compiler_cache_dir op_compiler_cache_mode op_debug_level
op_name_map op_precision_mode op_select_implmode optimization_switch optypelist_for_implmode
out_nodes output output_type precision_mode precision_mode_v2 raw_ge_options soc_version
"""
FILES = ("fusion_switch_file", "insert_op_conf", "keep_dtype", "modify_mixlist")
MODES = "fp16 origin cube_fp16in_fp32out mixed_float16 mixed_bfloat16 mixed_hif8 cube_hif8"
# Key of the note in a model's metadata.
SIMULATED = "acl_simulator"
GEARS = ("dynamic_batch_size", "dynamic_dims", "dynamic_image_size", "input_shape_range")


class Refusal(Exception):
    """What is wrong with the command line: a code of CANN's, and the text."""


def main():
    print("ATC start working now, please wait for a moment.", flush=True)
    note_run()
    try:
        options = parse(sys.argv[1:])
        shapes = read_shapes(options["input_shape"])
        note = check_model(options["model"], shapes)
        gears = read_gears(options, shapes)
        check_values(options)
        check_precision(options)
    except Refusal as refusal:
        sys.exit(failed(*refusal.args))
    # What runs on the host, too, is for one kind of host, and its name says so, before whatever is
    # the first ".om": hicann/ge base/common/helper/model_helper.cc.
    hosted = has_ranges(shapes) or os.environ.get("FAKE_ATC") == "hosted"
    host = f"_linux_{platform.machine()}" if hosted else ""
    om = Path(f"{options['output']}.om".replace(".om", f"{host}.om", 1))
    misbehave(om)
    if note is None:
        om.write_text(json.dumps({"options": options, "shapes": shapes, "gears": gears}))
    else:
        write_simulated(om, json.loads(note), options, shapes, gears)
    print("...\nATC run success, welcome to the next use.")


def write_simulated(om, graph, options, shapes, gears):
    from acl_simulator import BatchGears, DimsGears, Ranges, Static, write_om
    from acl_simulator.graphs import GRAPHS

    kind = Ranges if has_ranges(shapes) else Static
    if gears:
        kind = BatchGears if "dynamic_batch_size" in options else DimsGears
    inputs = {name: tuple(dims) for name, dims in shapes.items()}
    if "insert_op_conf" in options:
        graph, inputs = with_aipp(Path(options["insert_op_conf"]).read_text(), graph, inputs)
    if graph["kind"] == "TopK":  # hicann/ops-nn topk_proto.h: indices are DT_INT32, no other type
        graph["parameters"]["indices"] = "INT32"
    write_om(
        om,
        GRAPHS[graph["kind"]](**graph["parameters"]),
        kind(inputs=inputs, gears=gears),
        soc=options["soc_version"],
    )


def with_aipp(text, graph, inputs):
    """Return a photo model that takes RGB888_U8 images, as atc changes its input."""
    field = dict(re.findall(r"(\w+)\s*:\s*([\w.]+)", text))
    ((name, (batch, channels, height, width)),) = inputs.items()
    at = range(channels)
    given = {
        # Of what is taken off, `mean` is UINT8 and `min` FP16.
        "mean": [
            int(field.get(f"mean_chn_{c}", 0)) + float(field.get(f"min_chn_{c}", 0)) for c in at
        ],
        "scale": [float(field.get(f"var_reci_chn_{c}", 1)) for c in at],
    }
    kind = {"ChannelMeans": "PixelMeans"}.get(graph["kind"], graph["kind"])
    changed = {"kind": kind, "parameters": graph["parameters"] | given}
    return changed, {name: (batch, height, width, channels)}


def note_run():
    if runs := os.environ.get("FAKE_ATC_RUNS"):
        note = {
            "arguments": sys.argv[1:],
            "pid": os.getpid(),
            "set_env": os.environ.get("SOURCED"),
            "python_path": os.environ.get("PYTHONPATH"),
            "library_path": os.environ.get("LD_LIBRARY_PATH"),
        }
        with Path(runs).open("a") as file:
            file.write(json.dumps(note) + "\n")


def misbehave(om):
    fault = os.environ.get("FAKE_ATC", "")
    if fault == "fails":
        sys.exit(failed("EZ3003", "No supported Ops kernel and engine are found for [Foo1]."))
    if fault in {"crashes", "killed"}:
        om.write_text("{half of a mod")
        os.kill(os.getpid(), signal.SIGSEGV if fault == "crashes" else signal.SIGKILL)
    if fault == "nothing":
        sys.exit(0)
    while fault == "waits" and not Path(os.environ["FAKE_ATC_UNTIL"]).exists():
        time.sleep(0.01)


def failed(code, text):
    print("...\nATC run failed, Please check the detail log, Try 'atc --help' for more information")
    print(f"{code}: [PID: {os.getpid()}] 2026-01-01-00:00:00.000.000 {text}")
    print("        Possible Cause: N/A\n        Solution: Try again with a valid argument.")
    print("        TraceBack (most recent call last):\n        build graph failed, ret:-1[FUNC:x]")
    return 255


def parse(arguments):
    options = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = name.removeprefix("--")
        if not equals or name not in OPTIONS.split() or name in options:
            raise Refusal("E10001", f"unknown or repeated option {argument}")
        options[name] = value
    for name in ("model", "output", "framework", "soc_version", "input_shape"):
        if not options.get(name):
            raise Refusal("E10004", f"Value for parameter --{name} is empty.")
    if sum(name in options for name in GEARS) > 1:
        raise Refusal("E10009", f"{', '.join(GEARS)} are mutually exclusive.")
    return options


def check_values(options):
    if options["framework"] != "5":
        raise Refusal("E10007", "--framework must be 5 for ONNX")
    if not re.fullmatch(r"Ascend\w+", options["soc_version"]):
        raise Refusal("E10001", f"Value [{options['soc_version']}] for [--soc_version] is invalid.")
    formats = {"NCHW", "NHWC"} if "insert_op_conf" in options else {"ND", "NCHW", "NCDHW"}
    if options.get("input_format", "NCHW") not in formats:
        raise Refusal("E10014", "Value for parameter --input_format is invalid.")
    if options.get("precision_mode_v2", "fp16") not in MODES.split():
        raise Refusal("E10001", f"Value for --precision_mode_v2 must be one of: {MODES}")
    if "precision_mode" in options and "precision_mode_v2" in options:
        raise Refusal("E10001", "--precision_mode and --precision_mode_v2 are exclusive.")
    if not re.fullmatch(r"\d+(\|\d*)?", options.get("aicore_num", "24|48")):
        raise Refusal("E10001", "Value for --aicore_num is invalid.")
    if not Path(options["output"]).parent.is_dir():
        raise Refusal("E10001", "--output is in no folder")
    for name in FILES:
        if name in options and not Path(options[name]).is_file():
            raise Refusal("E10001", f"--{name}: file {options[name]} does not exist")


def check_precision(options):
    """Refuse what chips without FP32 in their matrix unit cannot compile, or only very slowly."""
    mode = options.get("precision_mode_v2", "fp16")
    if not re.fullmatch(r"Ascend310P\w*|Ascend910(Pro|Premium)?[AB]?", options["soc_version"]):
        return
    if "precision_mode" not in options and mode not in {"fp16", "mixed_float16"}:
        raise Refusal("EZ3003", f"No supported Ops kernel and engine are found for {mode}.")


def read_shapes(text):
    shapes = {}
    for part in text.split(";"):
        name, colon, dims = part.rpartition(":")
        if not (colon and name) or name in shapes:
            raise Refusal("E10002", f"Value {part} for parameter --input_shape is invalid.")
        shapes[name] = [read_dim(dim) for dim in dims.split(",")] if dims else []
    return shapes


def read_dim(text):
    """Return a size, -1 for what gears say, or the least and the most of a range."""
    return tuple(map(int, text.split("~"))) if "~" in text else int(text)


def as_tuple(dim):
    return dim if isinstance(dim, tuple) else (dim,)


def has_ranges(shapes):
    return any(isinstance(dim, tuple) for dims in shapes.values() for dim in dims)


def check_model(path, shapes):
    """Return the model's note for the simulator."""
    import onnx

    try:
        model = onnx.load(path)
    except Exception as error:
        raise Refusal("E10041", f"Failed to load the model from {path}.") from error
    constants = {constant.name for constant in model.graph.initializer}
    inputs = {i.name: i.type.tensor_type.shape for i in model.graph.input}
    expected = {
        name: [dim.dim_value or None for dim in shape.dim]
        for name, shape in inputs.items()
        if name not in constants
    }
    if unknown := sorted(set(shapes) - set(expected)):
        raise Refusal("E10016", f"Op name {unknown[0]} specified in --input_shape is not found.")
    for name, dims in expected.items():
        given = shapes.get(name, [])
        fits = len(given) == len(dims) and all(
            size in {None, dim} for dim, size in zip(given, dims, strict=True)
        )
        if name not in shapes or not fits:
            raise Refusal("E10001", f"--input_shape: {name} is {given}, the model has {dims}")
    return {entry.key: entry.value for entry in model.metadata_props}.get(SIMULATED)


def read_gears(options, shapes):
    free = [(name, at) for name, dims in shapes.items() for at, d in enumerate(dims) if d == -1]
    sizes = [size for dims in shapes.values() for dim in dims for size in as_tuple(dim)]
    if any(size < 1 and size != -1 for size in sizes):
        raise Refusal("E10011", "Shape values must be positive integers.")
    gears = listed_gears(options, shapes, free)
    if gears is None:
        return []
    most = 256 if options["soc_version"].startswith("Ascend950") else 100
    if len(gears) < 2:
        raise Refusal("E10035", f"{len(gears)} profiles, which is less than the minimum 2.")
    if len(gears) > most:
        raise Refusal("E10036", f"{len(gears)} profiles, which is greater than the maximum {most}.")
    if len({tuple(gear) for gear in gears}) < len(gears):
        raise Refusal("E10039", "duplicate profiles.")
    if any(value < 1 for gear in gears for value in gear):
        raise Refusal("E10038", "The value must be greater than 0.")
    return gears


def listed_gears(options, shapes, free):
    """Return the gears of the command line; None for one shape."""
    if "dynamic_batch_size" in options:
        if not free or any(at != 0 for _, at in free):
            raise Refusal("E10018", "only batch size N can be -1 in --input_shape.")
        if not all(shapes.values()):
            raise Refusal("E10012", "--dynamic_batch_size with an input of an empty shape.")
        return [[int(text)] for text in options["dynamic_batch_size"].split(",")]
    if "dynamic_dims" in options:
        gears = [list(map(int, g.split(","))) for g in options["dynamic_dims"].split(";")]
        if options.get("input_format") != "ND" or "insert_op_conf" in options:
            raise Refusal("E10001", "--dynamic_dims needs ND, and no --insert_op_conf")
        if any(len(gear) != len(free) for gear in gears) or not free:
            raise Refusal("E10003", "each gear must have as many values as there are -1")
        return gears
    if free:
        raise Refusal("E10001", "-1 without gears is a range model, which nobody asked for")
    return None


sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
main()
