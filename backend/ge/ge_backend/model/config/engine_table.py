"""The table of engines: which runs which files on which devices, and what it takes.

A new engine is one folder below `engines/` and one row here: for a kind of file, or for checkpoints
that generate text. Loading, the names of model files, the parameters, `ge-backend check` and
docs/devices.md read this table.
What an NPU runs offline (`.om`, and `.onnx` compiled to such) is opened by the device itself, since
it plans memory with it. vLLM is no row: it computes no step of ours, but plans its own.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ALIASED_ENDS",
    "DEVICE_ENDS",
    "ENGINES",
    "LANGUAGE_ENGINES",
    "PREPROCESS_ENDS",
    "SILENT_ENDS",
    "EngineRow",
    "LanguageRow",
    "engine_names",
    "engines_for",
    "file_ends",
    "language_engines",
]


ALL_PRECISIONS = ("origin", "bf16", "fp16")
# Of what computes no real numbers, and so says nothing of their precision.
ANY_PRECISION = ("fp32", *ALL_PRECISIONS, "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One way to run a kind of file on a kind of device.

    Attributes:
        name: what the parameter `engine` calls it.
        kinds: of the devices that have it.
        ends: how the names of its files end: `.onnx`, or `tokenizer.json`.
        opener: `module:class`, called with a `GraphSource` and what its device gives every engine;
            it returns a `Graph`. Imported when the first such file is loaded: a model of one
            engine never waits for another.
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
    opener: str
    libraries: tuple[str, ...]
    extra: str
    precisions: tuple[str, ...] = ("origin",)
    options: str = ""
    beside: tuple[str, ...] = ()
    runs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRow:
    """One way to compute the steps of a checkpoint that generates text.

    Attributes:
        name: what the parameter `engine` calls it, and the module of its own library.
        kinds: of the devices that have it.
        opener: `module:function`, which returns an `OpenedLanguage` for an `OpenLanguage`. Imported
            when the first such model is loaded.
        extra: the extra of this package that installs its own library.
        precisions: values of the parameter `precision` that it can compute in.
        caches: values of `kv_cache_dtype` that it has, some of them beside certain precisions.
    """

    name: str
    kinds: tuple[str, ...]
    opener: str
    extra: str
    precisions: tuple[str, ...] = ("fp32", *ALL_PRECISIONS)
    caches: tuple[str, ...] = ("model", "bf16")


# What a kind of device runs by itself, without an engine: how the names of these files end.
DEVICE_ENDS = {"npu": (".om", ".onnx"), "null": (".null",)}
# Files that do not say what tensors they take: config.pbtxt has to.
SILENT_ENDS = (".pt",)
# Files that may have several names for one tensor: config.pbtxt says which it goes by.
ALIASED_ENDS = (".xml",)
# Files of what makes tensors of texts and images.
PREPROCESS_ENDS = ("tokenizer.json", "image.json")

# Of several that can run a file, the first that is installed and has the precision does; where it
# turns out that it cannot, the next one.
ENGINES: tuple[EngineRow, ...] = (
    EngineRow(
        name="onnxruntime",
        kinds=("cpu",),
        ends=(".onnx",),
        opener="ge_backend.engines.ort.graph:OnnxGraph",
        libraries=("onnxruntime",),
        extra="onnx",
        runs="model.onnx",
    ),
    EngineRow(
        name="openvino",
        kinds=("cpu",),
        ends=(".onnx", ".xml"),
        opener="ge_backend.engines.ov.graph:OpenVinoGraph",
        libraries=("openvino",),
        extra="openvino",
        precisions=("origin", "bf16", "int8"),
        beside=(".bin",),
        runs="model.xml, model.onnx in bf16 and int8, and checkpoint folders, mostly faster",
    ),
    EngineRow(
        name="onnxruntime",
        kinds=("cuda",),
        ends=(".onnx",),
        opener="ge_backend.engines.ort.cuda:OnnxCudaGraph",
        libraries=("onnxruntime",),
        extra="cuda",
    ),
    EngineRow(
        name="torch",
        kinds=("cpu",),
        ends=(".pt2", ".pt"),
        opener="ge_backend.engines.torch.cpu_graph:TorchGraph",
        libraries=("torch",),
        extra="torch",
        precisions=ALL_PRECISIONS,
        runs="model.pt2 and model.pt",
    ),
    EngineRow(
        name="torch",
        kinds=("cuda",),
        ends=(".pt2", ".pt"),
        opener="ge_backend.engines.torch.accelerator:AcceleratorGraph",
        libraries=("torch",),
        extra="cuda",
        precisions=ALL_PRECISIONS,
        options="torch.",
    ),
    EngineRow(
        name="torch",
        kinds=("npu",),
        ends=(".pt2", ".pt"),
        opener="ge_backend.engines.torch.accelerator:AcceleratorGraph",
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
        opener="ge_backend.engines.ov.encoder:OpenVinoEncoder",
        libraries=("openvino", "transformers", "torch", "safetensors"),
        extra="openvino,generation",
        precisions=("fp32", "origin", "bf16", "int8"),
    ),
    EngineRow(
        name="transformers",
        kinds=("cpu",),
        ends=("config.json",),
        opener="ge_backend.engines.torch.encoder_graph:EncoderGraph",
        libraries=("transformers", "torch", "safetensors"),
        extra="generation",
        precisions=("fp32", *ALL_PRECISIONS),
        runs="an encoder's config.json with its weights, without padding",
    ),
    EngineRow(
        name="transformers",
        kinds=("cuda",),
        ends=("config.json",),
        opener="ge_backend.engines.torch.encoder_accelerator:AcceleratorEncoder",
        libraries=("transformers", "torch", "safetensors"),
        extra="cuda,generation",
        precisions=("fp32", *ALL_PRECISIONS),
        options="torch.",
    ),
    EngineRow(
        name="transformers",
        kinds=("npu",),
        ends=("config.json",),
        opener="ge_backend.engines.torch.encoder_accelerator:AcceleratorEncoder",
        libraries=("transformers", "torch", "torch_npu", "safetensors"),
        extra="npu,generation",
        precisions=("fp32", *ALL_PRECISIONS),
        options="torch.",
    ),
    EngineRow(
        name="tokenizers",
        kinds=("cpu",),
        ends=PREPROCESS_ENDS[:1],
        opener="ge_backend.engines.preprocess.tokenizer:TokenizerGraph",
        libraries=("tokenizers",),
        extra="text",
        precisions=ANY_PRECISION,
        options="tokenizer.",
        runs="tokenizer.json, so that texts can be sent",
    ),
    EngineRow(
        name="image",
        kinds=("cpu",),
        ends=PREPROCESS_ENDS[1:],
        opener="ge_backend.engines.preprocess.image:ImageGraph",
        libraries=("PIL",),
        extra="image",
        precisions=ANY_PRECISION,
        runs="image.json, so that image files can be sent",
    ),
)

# As above: the first that is installed and can computes a checkpoint.
LANGUAGE_ENGINES: tuple[LanguageRow, ...] = (
    LanguageRow(
        name="openvino",
        kinds=("cpu",),
        opener="ge_text.openvino.open:open_openvino",
        extra="openvino",
        precisions=ANY_PRECISION,
        caches=("model", "bf16", "int8"),
    ),
    LanguageRow(
        name="torch",
        kinds=("cpu", "cuda", "npu"),
        opener="ge_text.torch.open:open_torch",
        extra="generation",
    ),
)


def engines_for(filename: str, kind: str) -> tuple[EngineRow, ...]:
    """Return the engines that run a file of this name on this kind of device, in order."""
    return tuple(row for row in ENGINES if kind in row.kinds and filename.endswith(row.ends))


def language_engines(
    kind: str, name: str = "", precision: str = "origin", cache: str = "model"
) -> tuple[LanguageRow, ...]:
    """Return the engines that may compute a checkpoint on this kind of device, in order.

    Where one is named it is that alone, which may refuse the device; a name must be in the table.
    """
    able = tuple(
        row for row in LANGUAGE_ENGINES if precision in row.precisions and cache in row.caches
    )
    if name:
        return tuple(row for row in able if row.name == name)
    return tuple(row for row in able if kind in row.kinds)


def engine_names() -> tuple[str, ...]:
    """Return all names, each once."""
    names = (*(row.name for row in ENGINES), *(row.name for row in LANGUAGE_ENGINES))
    return tuple(dict.fromkeys(names))


def file_ends(kind: str = "") -> tuple[str, ...]:
    """Return how the names of model files end that a kind of device, or any, has an engine for."""
    rows = (row for row in ENGINES if not kind or kind in row.kinds)
    return tuple(dict.fromkeys(end for row in rows for end in row.ends))
