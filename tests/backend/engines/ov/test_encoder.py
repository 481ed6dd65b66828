"""What is OpenVINO's own in an encoder; that its layers are right is tested beside torch's."""

import threading

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from transformers.utils import logging  # noqa: E402

from builders.checkpoints import as_sentence_encoder, write_checkpoint  # noqa: E402
from ge_backend.device.base import GraphSource  # noqa: E402
from ge_backend.engines.kinds.cpu import CpuDevice  # noqa: E402
from ge_backend.engines.ov import arithmetic  # noqa: E402
from ge_backend.engines.ov import encoder as module  # noqa: E402
from ge_backend.engines.ov.encoder import OpenVinoLayers  # noqa: E402
from ge_backend.engines.torch.encoder import PackedEncoder  # noqa: E402
from ge_backend.engines.torch.packed_rows import pack_rows  # noqa: E402
from ge_backend.errors import GraphFailed, Unsupported  # noqa: E402
from ge_backend.model.files.encoder_folder import read_encoder_folder  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    return as_sentence_encoder(write_checkpoint(tmp_path))


@pytest.fixture
def encoder(folder):
    return PackedEncoder(read_encoder_folder(folder), torch.float32)


def rows(count=5):
    return pack_rows(np.full((2, count), 7), np.ones((2, count), np.int64))


def test_it_is_taken_by_itself_where_it_is_installed(folder, monkeypatch):
    """Before torch; with a precision that it does not have, torch is."""
    opened = []
    monkeypatch.setattr(
        module,
        "OpenVinoLayers",
        lambda encoder, **how: opened.append(encoder) or OpenVinoLayers(encoder, **how),
    )
    for precision, by_openvino in (("origin", True), ("fp16", False)):
        opened.clear()
        source = GraphSource.of(folder / "config.json", threads=1, precision=precision)
        CpuDevice().load(source).close()
        assert bool(opened) == by_openvino


def test_what_transformers_says_of_training_is_held_back(encoder, caplog):
    """A trace reads all that its modules have, their loss among it."""
    logging.warning_once.cache_clear()
    OpenVinoLayers(encoder)
    assert "loss_type" not in caplog.text


def test_bf16_is_computed_in_fp32_where_the_processor_has_none(folder, monkeypatch):
    """By OpenVINO still: torch would take several times as long. What is given is near."""
    monkeypatch.setattr(arithmetic, "has_bf16", lambda: False)
    inputs = {"input_ids": np.array([[5, 6, 7]]), "attention_mask": np.ones((1, 3), np.int64)}
    found = {}
    for precision in ("origin", "bf16"):
        source = GraphSource.of(
            folder / "config.json", threads=1, precision=precision, engine="openvino"
        )
        graph = CpuDevice().load(source)
        (found[precision],) = graph.run(inputs, {}, exclusive=False).values()
        graph.close()
    np.testing.assert_allclose(found["bf16"], found["origin"], atol=0.05)


def test_who_names_it_is_told_of_a_precision_that_it_has_not(folder):
    """By name it is not left to torch."""
    named = GraphSource.of(folder / "config.json", precision="fp16", engine="openvino")
    with pytest.raises(Unsupported, match="computes an encoder in origin, fp32, bf16, int8"):
        CpuDevice().load(named)


def test_many_rows_are_computed_a_few_at_a_time(encoder, monkeypatch):
    """Whole rows, as many as fit; a longer one by itself. The results are the same."""
    lengths = 3, 9, 1, 4, 12, 4, 2
    mask = (np.arange(12) < np.array(lengths)[:, None]).astype(np.int64)
    packed = pack_rows(np.arange(mask.size).reshape(mask.shape) % 90, mask)
    counts = []
    run = module._Compiled.run
    monkeypatch.setattr(
        module._Compiled, "run", lambda self, given: counts.append(given.count) or run(self, given)
    )
    whole = OpenVinoLayers(encoder).layers(1, 1)(packed)
    monkeypatch.setattr(module, "MAX_TOKENS", 8)
    found = OpenVinoLayers(encoder).layers(1, 1)(packed)
    assert counts == [sum(lengths), 1 + 2 + 3, 4 + 4, 9, 12]
    np.testing.assert_allclose(found[: sum(lengths)], whole[: sum(lengths)], atol=1e-5)


def test_texts_of_many_thousand_tokens_are_left_to_torch(folder, monkeypatch, caplog):
    """A mask has the square of their tokens."""
    monkeypatch.setattr(module, "LONGEST_ROW", 10)
    caplog.set_level("INFO")
    CpuDevice().load(GraphSource.of(folder / "config.json", threads=1)).close()
    assert "OpenVINO's masks would be too large with more than 10" in caplog.text


@pytest.mark.parametrize("wrong", [-1, 200, 2**40])
def test_a_token_outside_of_the_vocabulary_does_not_reach_openvino(encoder, wrong):
    """The error names what came and what the model has; the next run is right."""
    run = OpenVinoLayers(encoder).layers(1, 1)
    expected = run(rows())
    with pytest.raises(GraphFailed, match=rf"idx={wrong} must be within .*\[0,\d+\]"):
        run(pack_rows(np.full((1, 3), wrong), np.ones((1, 3), np.int64)))
    np.testing.assert_array_equal(run(rows()), expected)


def test_a_run_that_fails_costs_the_next_one_nothing(encoder, monkeypatch):
    """A compiled model may be of no use any more then, so there is another one."""
    compiled = []

    class Broken:
        """A model whose runs fail; its requests have no other method of OpenVINO's."""

        def create_infer_request(self):
            return self

        def set_input_tensor(self, index, tensor):
            pass

        def start_async(self):
            pass

        def wait(self):
            raise RuntimeError("Exception from node.cpp:794:\nthere is no memory")

    def compile_for_cpu(*given, **options):
        compiled.append(Broken() if not compiled else compile_really(*given, **options))
        return compiled[-1]

    compile_really = module.compile_for_cpu
    monkeypatch.setattr(module, "compile_for_cpu", compile_for_cpu)
    run = OpenVinoLayers(encoder).layers(1, 1)
    with pytest.raises(RuntimeError, match=r"^there is no memory$"):
        run(rows())
    assert np.isfinite(run(rows())).all()
    assert len(compiled) == 2


def test_results_are_the_callers_own(encoder):
    """A later run with the same request does not write to them."""
    run = OpenVinoLayers(encoder).layers(1, 1)
    first = run(rows())
    kept = first.copy()
    run(pack_rows(np.full((2, 5), 9), np.ones((2, 5), np.int64)))
    np.testing.assert_array_equal(first, kept)


def test_requests_are_used_again(encoder, monkeypatch):
    """As many are made as run at once, before the first run, and no more."""
    made, create = [], module.openvino.CompiledModel.create_infer_request
    monkeypatch.setattr(
        module.openvino.CompiledModel,
        "create_infer_request",
        lambda self: made.append(1) or create(self),
    )
    run = OpenVinoLayers(encoder).layers(1, 2)
    assert len(made) == 2
    for count in (5, 7, 5):
        run(rows(count))
    assert len(made) == 2


def test_inputs_of_the_same_shape_are_set_once(encoder, monkeypatch):
    """What a later run takes is written over them; a run of another shape is right, too."""
    made = []
    tensor = module.openvino.Tensor
    monkeypatch.setattr(
        module.openvino, "Tensor", lambda *given, **how: made.append(1) or tensor(*given, **how)
    )
    run = OpenVinoLayers(encoder).layers(1, 2)
    expected = run(rows(5))
    run(pack_rows(np.full((2, 5), 9), np.ones((2, 5), np.int64)))
    assert len(made) == 2
    run(rows(30))
    np.testing.assert_array_equal(run(rows(5)), expected)


def test_rows_are_reduced_where_they_are(encoder):
    """What an encoder makes of hidden states is made before these are copied."""
    layered = OpenVinoLayers(encoder)
    run = layered.layers(1, 2)
    packed = rows(5)
    expected = encoder.reduced(run(packed)[: len(packed.rows)], packed.firsts)
    assert layered.reduce()
    found = run(packed)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    run(pack_rows(np.full((2, 5), 9), np.ones((2, 5), np.int64)))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_run_on_all_cores_has_bodies_for_few_tokens(encoder, monkeypatch):
    """By how many tokens there are; more go the way of any shape. All are what they are there."""
    asked = []
    given = module._Compiled._given
    monkeypatch.setattr(
        module._Compiled, "_given", lambda *told: asked.append(given(*told)) or asked[-1]
    )
    layered = OpenVinoLayers(encoder)
    wide, narrow = layered.layers(1, 1), OpenVinoLayers(encoder).layers(1, 2)
    layered.compile_bodies()
    layered.settle()
    for lengths in (5,), (16,), (17,), (3, 9, 1), (32,) * 4, (32,) * 5, (30, 30, 29), (2,), (16,):
        mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
        packed = pack_rows(np.arange(mask.size).reshape(mask.shape) % 90, mask)
        tokens = sum(lengths)
        np.testing.assert_allclose(wide(packed)[:tokens], narrow(packed)[:tokens], atol=1e-5)
        (which, inputs, stand), alone = asked[-2:]
        size = next((size for size in module.SIZES if size >= tokens), None)
        if size is None:
            assert which == len(module.SIZES)
        else:
            assert module.SIZES[which] == inputs.shape[1] == size
            assert stand.shape[1] == 1
        assert len(alone) == 2


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_there_are_bodies_for_larger_chunks_in_bf16(encoder, monkeypatch, kind):
    """In FP32 to fill chunks up costs more than to make a model ready anew."""
    asked = []
    given = module._Compiled._given
    monkeypatch.setattr(
        module._Compiled, "_given", lambda *told: asked.append(given(*told)) or asked[-1]
    )
    layered = OpenVinoLayers(encoder, arithmetic.Arithmetic(kind=kind))
    run = layered.layers(1, 1)
    layered.compile_bodies()
    layered.settle()
    sizes = (*module.SIZES, *module.LARGER_SIZES)
    for texts, tokens in (3, 96), (4, 128), (6, None):
        run(pack_rows(np.full((texts, 30), 9), np.ones((texts, 30), np.int64)))
        which, inputs, stand = asked[-1]
        if kind == "f32" or tokens is None:
            assert which == len(module.SIZES if kind == "f32" else sizes)
        else:
            assert sizes[which] == inputs.shape[1] == tokens
            assert stand.shape == (2, 1, tokens)


def test_bodies_are_compiled_beside_serving(folder, monkeypatch):
    """A run does not wait for them, and measuring does; closing ends what has begun."""
    go, sized = threading.Event(), module._sized
    monkeypatch.setattr(module, "_sized", lambda *given: go.wait(10) and sized(*given))
    graph = CpuDevice(lanes=1).load(GraphSource.of(folder / "config.json", threads=1))
    inputs = {"input_ids": np.array([[5, 6, 7]]), "attention_mask": np.ones((1, 3), np.int64)}
    graph._layers.compile_bodies()
    other = graph._layers.layers(1, 1)
    asked = []
    given = module._Compiled._given
    monkeypatch.setattr(
        module._Compiled, "_given", lambda *told: asked.append(given(*told)) or asked[-1]
    )
    (free,) = graph.run(inputs, {}, exclusive=True).values()
    other(rows())
    assert [len(one) for one in asked] == [2, 2]
    go.set()
    graph.settle()
    other(rows())
    assert len(asked[-1]) == 3
    (body,) = graph.run(inputs, {}, exclusive=True).values()
    np.testing.assert_allclose(body, free, atol=1e-5)
    graph.close()
    assert not [one for one in threading.enumerate() if one.name == "bodies"]


def test_bodies_that_cannot_be_had_leave_one_for_any_shape(encoder, monkeypatch, caplog):
    """The log says why."""
    caplog.set_level("INFO")

    def refuse(*_):
        raise RuntimeError("Exception from node.cpp:794:\nno such reshape")

    monkeypatch.setattr(module, "fixed", refuse)
    layered = OpenVinoLayers(encoder)
    run = layered.layers(1, 1)
    layered.compile_bodies()
    layered.settle()
    assert np.isfinite(run(rows())).all()
    assert "one body for chunks of all sizes: no such reshape" in caplog.text


def rotary_checkpoint(folder, kind):
    """Write a model of rotary positions whose attention tells them apart, and return its folder."""
    import transformers

    torch.manual_seed(3)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 200, "pad_token_id": 0}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"head_dim": 32} if kind == "Qwen3" else {}
    config = getattr(transformers, f"{kind}Config")(max_position_embeddings=1024, **sizes)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "embed" not in name:
            torch.nn.init.normal_(weight, 0, 1.5 / weight.shape[1] ** 0.5)
    model.save_pretrained(folder)
    pooling = "mean_tokens" if kind == "EuroBert" else "lasttoken"
    return as_sentence_encoder(folder, pooling, max_seq_length=1000)


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3", "EuroBert"])
def test_bf16_tells_positions_beyond_256_apart(tmp_path, kind):
    """As well as torch's own BF16 does: each answer is as near to FP32, alone and beside others."""
    folder = rotary_checkpoint(tmp_path, kind)
    random = np.random.default_rng(5)
    ids, lengths = random.integers(5, 190, (3, 900)), np.array([900, 300, 40])
    mask = (np.arange(900) < lengths[:, None]).astype(np.int64)
    found = {}
    for precision, engine in (
        ("fp32", "transformers"),
        ("bf16", "transformers"),
        ("bf16", "openvino"),
    ):
        graph = CpuDevice().load(
            GraphSource.of(folder / "config.json", threads=1, precision=precision, engine=engine)
        )
        (rows,) = graph.run(
            {"input_ids": ids, "attention_mask": mask}, {}, exclusive=False
        ).values()
        found[precision, engine] = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
        graph.close()
    exact = found.pop(("fp32", "transformers"))
    apart = {engine: 1 - (rows * exact).sum(-1) for (_, engine), rows in found.items()}
    assert (apart["openvino"] <= 3 * apart["transformers"] + 5e-4).all(), apart
