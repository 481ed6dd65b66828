import pytest

from builders.hosted_ensembles import ensemble, step
from ge_backend.device import engines
from ge_backend.model.config.engine_table import ENGINES
from ge_tools.model.needs import read_needs

FUSED = 'backend: "ge" parameters { key: "fuse" value { string_value: "chain" } }'


@pytest.fixture
def add(tmp_path):
    """A function that writes a model with one file and a configuration."""

    def add(name: str, file: str, config: str = 'backend: "ge"') -> None:
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
        (tmp_path / name / "1" / file).touch()

    return add


def on(device: str) -> str:
    return f'backend: "ge" parameters {{ key: "device" value {{ string_value: "{device}" }} }}'


def test_a_file_needs_the_engine_of_its_kind_on_the_device_of_its_model(add, tmp_path):
    """Models that name no device take the machine's; each need says whose it is."""
    add("encoder", "model.onnx")
    add("gpu", "model.pt2", on("cuda:1"))
    add("ranker", "model.onnx")
    add("words", "tokenizer.json", on("cpu"))

    needs = read_needs(tmp_path, {"GE_DEVICE": "cuda:0"})

    assert needs.devices == {
        "cuda:0": ("encoder", "ranker"),
        "cuda:1": ("gpu",),
        "cpu": ("words",),
    }
    assert needs.engines == {
        "onnxruntime": ("encoder", "ranker"),
        "torch": ("gpu",),
        "tokenizers": ("words",),
    }
    assert needs.broken == {}
    assert needs.extras == {"onnxruntime": "cuda", "torch": "cuda", "tokenizers": "text"}


def test_one_extra_brings_all_that_a_checkpoint_needs(add, tmp_path, monkeypatch):
    """Where nothing is installed; what is faster may come later."""
    monkeypatch.setattr(engines, "installed", lambda _: False)
    add("writer", "config.json")
    add("net", "model.pt2")
    said = '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'
    (tmp_path / "writer" / "1" / "config.json").write_text(said)

    extras = read_needs(tmp_path, {}).extras

    assert (extras["safetensors"], extras["torch"]) == ("generation", "generation,torch")
    assert "openvino" not in extras


def test_an_npu_compiles_onnx_and_runs_torch_with_torch_npu(add, tmp_path):
    """Offline models and ONNX models need CANN alone, which opening the device proves."""
    add("offline", "model.om", on("npu"))
    add("compiled", "model.onnx", on("npu"))
    add("torch", "model.pt2", on("npu"))

    needs = read_needs(tmp_path, {})

    assert needs.devices == {"npu:0": ("compiled", "offline", "torch")}
    assert needs.engines == {"torch": ("torch",), "torch_npu": ("torch",)}


def test_models_of_others_and_fused_ensembles_need_nothing_of_their_own(add, tmp_path):
    """The steps of a fused ensemble are models beside it."""
    add("python", "model.py", 'backend: "python"')
    add("plain", "model.onnx", on("cpu"))
    add("chain", "README", ensemble())
    add("fused", "README", FUSED)

    needs = read_needs(tmp_path, {})

    assert (needs.devices, needs.broken) == ({"cpu": ("plain",)}, {})
    assert needs.engines == {"onnxruntime": ("plain",)}
    assert needs.others == {"python": "python"}


def test_an_ensemble_that_cannot_be_is_told(add, tmp_path):
    """The host's own, and one that is fused."""
    add("chain", "README", ensemble(step(takes="x: Z")))
    add("fused", "README", FUSED)

    broken = read_needs(tmp_path, {}).broken

    assert "takes tensor 'Z', which nobody writes" in broken["chain"]
    assert "takes tensor 'Z', which nobody writes" in broken["fused"]


def test_a_model_that_brings_its_backend_needs_none_of_the_server(add, tmp_path):
    """Triton looks for the library in the model's folder, too."""
    add("own", "libtriton_own.so", 'backend: "own"')
    assert read_needs(tmp_path, {}).others == {}


def test_a_model_that_cannot_be_read_is_told_and_others_are_read(add, tmp_path):
    """A misspelt key, a missing file."""
    add("good", "model.onnx")
    add("misspelt", "model.onnx", on("cpu").replace("device", "devise"))
    add("empty", "README")

    needs = read_needs(tmp_path, {})

    assert needs.devices == {"cpu": ("good",)}
    assert "devise" in needs.broken["misspelt"]
    assert "no model file" in needs.broken["empty"]


def says(**parameters: str) -> str:
    blocks = (
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    )
    return " ".join(('backend: "ge"', *blocks))


@pytest.mark.parametrize(
    ("file", "said", "reason"),
    [
        ("model.om", {}, "model.om: the cpu device runs .onnx, .xml"),
        ("model.null", {}, "model.null: the cpu device runs .onnx, .xml"),
        ("tokenizer.json", {"device": "cuda:1"}, "the cuda device runs .onnx, .pt2, .pt"),
        ("tokenizer.json", {"device": "npu"}, "the npu device runs .om, .onnx, .pt2, .pt"),
        ("model.onnx", {"device": "null"}, "the null device runs .null"),
        (
            "model.onnx",
            {"engine": "torch"},
            "'engine' is 'torch'; model.onnx is run by onnxruntime, openvino on cpu",
        ),
        ("model.onnx", {"engine": "vllm"}, "'engine' is 'vllm'; model.onnx is run by"),
        ("config.json", {"engine": "torch"}, "config.json is run by openvino, transformers"),
        (
            "model.onnx",
            {"precision": "fp16"},
            "'fp16'; model.onnx is run in origin, bf16, int8 by onnxruntime, openvino on cpu",
        ),
        (
            "model.onnx",
            {"precision": "bf16", "engine": "onnxruntime"},
            "'precision' is 'bf16'; model.onnx is run in origin by onnxruntime on cpu",
        ),
        ("model.pt2", {"precision": "fp32", "engine": "auto"}, "in origin, bf16, fp16 by torch"),
    ],
)
def test_a_model_that_no_engine_runs_is_told(add, tmp_path, file, said, reason):
    """As loading it would, whatever is installed."""
    add("m", file, says(**said))
    needs = read_needs(tmp_path, {})
    assert reason in needs.broken["m"]
    assert (needs.devices, needs.engines) == ({}, {})


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("model.om", {"device": "npu"}),
        ("model.onnx", {"device": "npu", "precision": "fp16"}),
        ("model.null", {"device": "null"}),
        ("model.onnx", {"device": "abacus"}),  # which the device's own line tells
        ("model.onnx", {"precision": "bf16"}),
        ("model.onnx", {"engine": "auto"}),
        ("tokenizer.json", {"precision": "bf16"}),
        ("image.json", {"precision": "fp32"}),
    ],
)
def test_a_model_that_runs_is_not_told(add, tmp_path, file, said):
    """What devices run themselves is in no table, and a tokenizer computes in no precision."""
    add("m", file, says(**said))
    (tmp_path / "m" / "1" / file).write_bytes(b"\x08\x08")  # of an ONNX file, its version alone
    assert read_needs(tmp_path, {"GE_CACHE_DIR": "off"}).broken == {}


@pytest.mark.parametrize("engine", ["openvino", "torch", "vllm"])
def test_text_generators_have_engines_of_their_own(add, tmp_path, engine):
    """And precisions, whatever an encoder of such a file has."""
    add("writer", "config.json", says(engine=engine, precision="fp16"))
    said = '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'
    (tmp_path / "writer" / "1" / "config.json").write_text(said)
    assert read_needs(tmp_path, {}).broken == {}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"engine": "transformers"}, "runs on 'openvino', 'torch' or 'vllm'"),
        ({"device": "cuda", "device_ids": "0,1"}, "device_ids name 2 devices"),
        ({"vllm.max_model_len": "512"}, "is for engine 'vllm'"),
        ({"engine": "vllm", "max_num_seqs": "8"}, "'max_num_seqs' is of no use"),
        ({"buckets.rows": "1,2"}, "'buckets.rows' is unknown for a model that generates text"),
        ({"num_speculative_tokens": "99"}, "num_speculative_tokens is 99"),
    ],
)
def test_a_text_generator_that_cannot_be_served_so_is_told(add, tmp_path, said, reason):
    """With what its load would say before it opens anything."""
    add("writer", "config.json", says(**said))
    model = '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'
    (tmp_path / "writer" / "1" / "config.json").write_text(model)
    needs = read_needs(tmp_path, {})
    assert reason in needs.broken["writer"]
    assert (needs.devices, needs.engines) == ({}, {})


def test_one_incomplete_configuration_does_not_hide_the_others(add, tmp_path):
    """An input without its type, for example."""
    add("good", "model.onnx")
    add("bad", "model.onnx", 'backend: "ge" input { name: "x" dims: [ 4 ] }')
    needs = read_needs(tmp_path, {})
    assert needs.devices == {"cpu": ("good",)}
    assert "an input has no data_type" in needs.broken["bad"]


def test_a_name_that_is_not_the_folders_is_told(add, tmp_path):
    """As after a copy: Triton does not start with it, whoever runs the model."""
    add("right", "model.onnx", 'name: "right" backend: "ge"')
    (tmp_path / "linked").symlink_to(tmp_path / "right")
    for name, backend in (("copy", "ge"), ("other", "python")):
        add(name, "model.onnx", f'name: "right" backend: "{backend}"')

    broken = read_needs(tmp_path, {}).broken

    assert {name for name, said in broken.items() if "has the name 'right'" in said} == {
        "copy",
        "other",
        "linked",
    }


@pytest.mark.parametrize("row", [row for row in ENGINES if "cpu" in row.kinds])
def test_every_engine_of_the_table_is_one_that_a_model_may_need(add, tmp_path, row):
    """By the parameter `engine`, whether it is installed or not."""
    for number, end in enumerate(row.ends):
        file = f"model{end}" if end.startswith(".") else end
        named = f'parameters {{ key: "engine" value {{ string_value: "{row.name}" }} }}'
        add(f"m{number}", file, f'backend: "ge" {named}')
    models = tuple(f"m{number}" for number in range(len(row.ends)))
    assert read_needs(tmp_path, {}).engines == dict.fromkeys(row.libraries, models)
