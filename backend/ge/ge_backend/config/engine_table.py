"""The table of engines: which runs which files on which devices, and what it takes.

A new engine is one folder below `device/` and one row here. Loading, the names of model files, the
parameters, `ge-backend check` and docs/devices.md read this table.
What an NPU runs offline (`.om`, and `.onnx` compiled to such) is opened by the device itself, since
it plans memory with it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ENGINES", "SILENT_ENDS", "EngineRow", "engine_names", "engines_for", "file_ends"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One way to run a kind of file on a kind of device.

    Attributes:
        name: what the parameter `engine` calls it.
        kinds: of the devices that have it.
        ends: how the names of its files end: `.onnx`, or `tokenizer.json`.
        module, constructor: called with a `GraphSource` and what its device gives every engine; it
            returns a `Graph`. Imported when the first such file is loaded: a model of one engine
            never waits for another.
        libraries: the modules that have to be installed; the first one is the engine's own.
        extra: the extra of this package that installs them; several with commas between.
        precisions: values of the parameter `precision` that it can compute in.
        options: how the parameters begin that only this engine understands; "" where it has none.
        beside: the ends of the files beside a model's, of the same name, that belong to it.
        runs: what it is good for, in the words of `ge-backend check`.
    """

    name: str
    kinds: tuple[str, ...]
    ends: tuple[str, ...]
    module: str
    constructor: str
    libraries: tuple[str, ...]
    extra: str
    precisions: tuple[str, ...] = ("origin",)
    options: str = ""
    beside: tuple[str, ...] = ()
    runs: str = ""


# Files that do not say what tensors they take: config.pbtxt has to.
SILENT_ENDS = (".pt",)
ALL_PRECISIONS = ("origin", "bf16", "fp16")

# Of several that can run a file, the first that is installed and has the precision does; where it
# turns out that it cannot, the next one.
ENGINES: tuple[EngineRow, ...] = (
    EngineRow(
        name="onnxruntime",
        kinds=("cpu",),
        ends=(".onnx",),
        module="ge_backend.device.ort.graph",
        constructor="OnnxGraph",
        libraries=("onnxruntime",),
        extra="onnx",
        runs="model.onnx",
    ),
    EngineRow(
        name="openvino",
        kinds=("cpu",),
        ends=(".onnx", ".xml"),
        module="ge_backend.device.ov.graph",
        constructor="OpenVinoGraph",
        libraries=("openvino",),
        extra="openvino",
        precisions=("origin", "bf16"),
        beside=(".bin",),
        runs="model.xml, model.onnx in bf16, and checkpoint folders, mostly faster",
    ),
    EngineRow(
        name="onnxruntime",
        kinds=("cuda",),
        ends=(".onnx",),
        module="ge_backend.device.ort.cuda",
        constructor="OnnxCudaGraph",
        libraries=("onnxruntime",),
        extra="cuda",
    ),
    EngineRow(
        name="torch",
        kinds=("cpu",),
        ends=(".pt2", ".pt"),
        module="ge_backend.device.pytorch.cpu_graph",
        constructor="TorchGraph",
        libraries=("torch",),
        extra="torch",
        precisions=ALL_PRECISIONS,
        runs="model.pt2 and model.pt",
    ),
    EngineRow(
        name="torch",
        kinds=("cuda",),
        ends=(".pt2", ".pt"),
        module="ge_backend.device.pytorch.accelerator",
        constructor="AcceleratorGraph",
        libraries=("torch",),
        extra="cuda",
        precisions=ALL_PRECISIONS,
        options="torch.",
    ),
    EngineRow(
        name="torch",
        kinds=("npu",),
        ends=(".pt2", ".pt"),
        module="ge_backend.device.pytorch.accelerator",
        constructor="AcceleratorGraph",
        libraries=("torch", "torch_npu"),
        extra="npu",
        precisions=ALL_PRECISIONS,
        options="torch.",
        runs="model.pt2 and model.pt on an Ascend NPU",
    ),
    EngineRow(
        name="openvino",
        kinds=("cpu",),
        ends=("config.json",),
        module="ge_backend.device.ov.encoder",
        constructor="OpenVinoEncoder",
        libraries=("openvino", "transformers", "torch", "safetensors"),
        extra="openvino,generation",
        precisions=("fp32", "origin", "bf16"),
    ),
    EngineRow(
        name="transformers",
        kinds=("cpu",),
        ends=("config.json",),
        module="ge_backend.device.pytorch.encoder_graph",
        constructor="EncoderGraph",
        libraries=("transformers", "torch", "safetensors"),
        extra="generation",
        precisions=("fp32", *ALL_PRECISIONS),
        runs="an encoder's config.json with its weights, without padding",
    ),
    EngineRow(
        name="transformers",
        kinds=("cuda",),
        ends=("config.json",),
        module="ge_backend.device.pytorch.encoder_accelerator",
        constructor="AcceleratorEncoder",
        libraries=("transformers", "torch", "safetensors"),
        extra="cuda,generation",
        precisions=("fp32", *ALL_PRECISIONS),
        options="torch.",
    ),
    EngineRow(
        name="transformers",
        kinds=("npu",),
        ends=("config.json",),
        module="ge_backend.device.pytorch.encoder_accelerator",
        constructor="AcceleratorEncoder",
        libraries=("transformers", "torch", "torch_npu", "safetensors"),
        extra="npu,generation",
        precisions=("fp32", *ALL_PRECISIONS),
        options="torch.",
    ),
    EngineRow(
        name="tokenizers",
        kinds=("cpu",),
        ends=("tokenizer.json",),
        module="ge_backend.device.preprocess.tokenizer",
        constructor="TokenizerGraph",
        libraries=("tokenizers",),
        extra="text",
        precisions=("fp32", *ALL_PRECISIONS),  # which say nothing of it
        options="tokenizer.",
        runs="tokenizer.json, so that texts can be sent",
    ),
    EngineRow(
        name="image",
        kinds=("cpu",),
        ends=("image.json",),
        module="ge_backend.device.preprocess.image",
        constructor="ImageGraph",
        libraries=("PIL",),
        extra="image",
        precisions=("fp32", *ALL_PRECISIONS),  # which say nothing of it
        runs="image.json, so that image files can be sent",
    ),
)


def engines_for(filename: str, kind: str) -> tuple[EngineRow, ...]:
    """Return the engines that run a file of this name on this kind of device, in order."""
    return tuple(row for row in ENGINES if kind in row.kinds and filename.endswith(row.ends))


def engine_names() -> tuple[str, ...]:
    """Return all names, each once."""
    return tuple(dict.fromkeys(row.name for row in ENGINES))


def file_ends(kind: str = "") -> tuple[str, ...]:
    """Return how the names of model files end that a kind of device, or any, has an engine for."""
    rows = (row for row in ENGINES if not kind or kind in row.kinds)
    return tuple(dict.fromkeys(end for row in rows for end in row.ends))
