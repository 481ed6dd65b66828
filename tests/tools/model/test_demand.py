import numpy as np
import pytest

from builders.writer import make_writer
from ge_backend.device.machine.host_memory import host_memory
from ge_backend.errors import GeError
from ge_backend.model.config.sizes import parse_bytes
from ge_text.engine.engine import Engine
from ge_text.engine.settings import EngineSettings
from ge_text.models.open import OpenLanguage, open_language
from ge_tools.model.demand import measure_demand

CONFIG = """\
backend: "ge"
max_batch_size: 8
instance_group [ { count: 3 kind: KIND_CPU } ]
parameters { key: "device" value { string_value: "null" } }
parameters { key: "buckets.rows" value { string_value: "1,8" } }
parameters { key: "buckets.length" value { string_value: "16,64" } }
"""


def measured(folder, device=None):
    return measure_demand(folder, device=device, cache_dir=None)


def test_what_a_model_takes(model):
    """Its file, tensors of its largest bucket per instance, and scratch of a run in it."""
    folder = model(CONFIG)
    found = measured(folder)
    assert (found.model, found.devices) == ("tiny", ("null",))
    assert found.weights_bytes == (folder / "1" / "model.null").stat().st_size
    assert found.io_bytes == 3 * (8 * 64 + 8) * 4
    assert found.workspace_bytes == 8 * 64  # of this device one byte per element
    assert found.run_ns > 0
    assert found.memory_bytes > 0


def test_only_the_largest_buckets_run(model, tmp_path):
    """Of a list each that no other covers; the others need less."""
    (tmp_path / "repository").mkdir()
    config = CONFIG.replace(
        '"buckets.rows" value { string_value: "1,8" }',
        '"buckets" value { string_value: "file:b.txt" }',
    )
    config = "".join(line for line in config.splitlines(True) if "buckets.length" not in line)
    folder = model(config)
    (folder / "b.txt").write_text("(1, 256)\n(1, 16)\n(8, 16)\n")
    found = measured(folder)
    assert found.workspace_bytes == 256
    assert found.io_bytes == 3 * (256 + 1) * 4


def test_devices(model):
    """Those of the configuration, unless one is named."""
    ids = CONFIG + 'parameters { key: "device_ids" value { string_value: "0,1" } }\n'
    folder = model(ids)
    assert measured(folder).devices == ("null", "null:1")
    assert measured(folder, "null:2").devices == ("null:2",)


def test_sizes_that_only_a_request_knows(model):
    """An axis that is not padded: the buffers are unknown."""
    config = "".join(line for line in CONFIG.splitlines(True) if "buckets.length" not in line)
    assert measured(model(config, static_shapes=False)).io_bytes is None


def test_a_model_that_cannot_be_loaded(model):
    """Its error is passed on."""
    folder = model(CONFIG)
    (folder / "1" / "model.null").write_text("{")
    with pytest.raises(GeError):
        measured(folder)


@pytest.mark.parametrize(("fewest", "known"), [(20, True), (20_000, False)])
def test_a_model_that_does_not_run_at_a_guessed_size_is_planned(
    tmp_path, monkeypatch, caplog, fewest, known
):
    """By a size that is tried; where it runs at none, what its runs need is not known, as told."""
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    from builders.graphs import graph, write_model

    monkeypatch.setenv("GE_CACHE_DIR", "off")
    nodes = [helper.make_node("TopK", ["audio", "k"], ["y", "place"], axis=1)]
    best = graph(
        nodes,
        [("audio", TensorProto.FLOAT, ["batch", "samples"])],
        [("y", TensorProto.FLOAT, ["batch", fewest])],
        [("k", np.array([fewest]))],
    )
    write_model(tmp_path, "best", "max_batch_size: 4\n", best)
    found = measured(tmp_path / "best", "cpu")
    assert (found.workspace_bytes > 0, found.io_bytes) == (known, None)
    assert ("bucket rows=4 cannot be measured" not in caplog.text) == known


def test_files_beside_an_onnx_model_are_weights(tmp_path, monkeypatch):
    """External data counts."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from builders.graphs import token_rows, write_model

    monkeypatch.setenv("GE_CACHE_DIR", "off")
    write_model(tmp_path, "rows", "max_batch_size: 4\n", token_rows())
    path = tmp_path / "rows" / "1" / "model.onnx"
    model = onnx.load(path)
    table = np.zeros((100, 4000), np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(table, "table"))
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 4000
    onnx.save(model, path, save_as_external_data=True, location="weights.bin")
    assert measured(path.parent.parent, "cpu").weights_bytes > table.nbytes


@pytest.mark.parametrize(
    ("precision", "held", "cache", "kept", "size"),
    [
        ("origin", 4, "20KiB", "model", 16),
        ("bf16", 2, "1MiB", "model", 16),
        ("fp16", 4, "1MiB", "bf16", 16),
        ("origin", 4, "0", "model", 16),
        ("origin", 4, "1MiB", "int8", 32),
    ],
)
def test_a_checkpoint_has_weights_and_a_cache(tmp_path, precision, held, cache, kept, size):
    """As the engine would have them, by the checkpoint's headers: nothing is loaded."""
    folder = tmp_path / "writer"
    (folder / "1").mkdir(parents=True)
    model = make_writer(folder / "1", head_dim=64 if kept == "int8" else None).model
    settings = {"kv_cache_bytes": cache, "kv_cache_dtype": kept, "precision": precision}
    settings |= {"max_num_seqs": "3", "block_size": str(size)}
    lines = [
        f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in settings.items()
    ]
    (folder / "config.pbtxt").write_text("\n".join(['backend: "ge"', *lines]))
    found = measured(folder)
    opened = open_language(
        OpenLanguage(
            device="cpu",
            folder=folder / "1",
            precision=precision,
            threads=1,
            block_size=size,
            memory=host_memory,
            cache_dtype=kept,
        )
    ).model
    engine = Engine(
        opened, EngineSettings(kv_cache_bytes=parse_bytes(cache, "c"), max_num_seqs=3), lambda: 0.0
    )
    assert found.weights_bytes == sum(p.numel() for p in model.parameters()) * held
    blocks = engine.figures().blocks_free + 1
    assert found.cache_bytes == blocks * opened.cache_bytes_per_block()
    assert blocks == (3 if cache == "20KiB" else 3 * 256 // size + 1)
    assert (found.devices, found.io_bytes, found.workspace_bytes) == (("cpu",), None, 0)
    opened.close()


def test_a_checkpoint_that_cannot_be_served_so_is_not_planned(tmp_path):
    """Its load would refuse it, whatever it takes."""
    folder = tmp_path / "writer"
    (folder / "1").mkdir(parents=True)
    make_writer(folder / "1")
    engine = 'parameters { key: "engine" value { string_value: "onnxruntime" } }'
    (folder / "config.pbtxt").write_text(f'backend: "ge" {engine}')
    with pytest.raises(GeError, match="a model that generates text runs on 'openvino', 'torch'"):
        measured(folder)


def test_a_model_that_guesses_is_part_of_it(tmp_path):
    """Its weights, and as many blocks of a cache."""
    folder = tmp_path / "writer"
    for name in ("1", "draft"):
        (folder / name).mkdir(parents=True)
        make_writer(folder / name)

    def measured_with(**settings):
        lines = [
            f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}'
            for k, v in settings.items()
        ]
        (folder / "config.pbtxt").write_text("\n".join(['backend: "ge"', *lines]))
        return measured(folder)

    alone = measured_with(max_num_seqs="3")
    both = measured_with(max_num_seqs="3", speculation="model", speculative_model="draft")
    assert both.weights_bytes == 2 * alone.weights_bytes
    assert both.cache_bytes == 2 * alone.cache_bytes
