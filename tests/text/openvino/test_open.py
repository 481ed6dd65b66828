"""OpenVINO computes the checkpoints that it can; torch the others, unless somebody asked for it."""

import gc
import logging
import re
import sys
import weakref

import pytest
import torch

from builders.language import make
from ge_backend.device.base import MemoryInfo
from ge_backend.engines.ov.precision import computed_in
from ge_backend.errors import DeviceUnavailable, Unsupported
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.models.open import INT8, OpenLanguage, cache_bytes_per_token, open_language
from ge_text.openvino import open as module
from ge_text.openvino.decoder import OpenVinoDecoder
from ge_text.torch.llama import LlamaDecoder
from ge_text.torch.loading import DTYPES, NAMES


def asked(folder, **given):
    defaults = {"device": "cpu", "precision": "origin", "threads": 1, "block_size": 32}
    memory = MemoryInfo(free_bytes=2**30, total_bytes=2**30)
    return OpenLanguage(folder=folder, memory=lambda: memory, **{**defaults, **given})


@pytest.fixture
def folder(tmp_path):
    make(tmp_path, "llama")
    return tmp_path


@pytest.mark.parametrize(
    ("precision", "dtype"), [("origin", "FP32"), ("bf16", "BF16"), ("fp16", "FP32")]
)
def test_it_comes_first_in_the_precisions_that_a_cpu_has(folder, caplog, precision, dtype):
    """Nobody has to ask for it, and the log says so."""
    computed = NAMES[computed_in(DTYPES[dtype])]
    with caplog.at_level(logging.INFO):
        model = open_language(asked(folder, precision=precision)).model
    assert f"{folder}: openvino computes it" in caplog.text
    assert isinstance(model._decoder, OpenVinoDecoder)
    assert (model.dtype, model.block_size) == (computed, 32)
    assert len(model.products) == 4 * 3


def test_who_asks_for_torch_gets_torch(folder):
    """And the same tokens."""
    model = open_language(asked(folder, engine="torch")).model
    assert isinstance(model._decoder, LlamaDecoder)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"block_size": 16}, "block_size 16, it has 32"),
        ({"cache_dtype": "bf16"}, "kv_cache_dtype bf16"),
        ({"padded": True}, "buckets"),
    ],
)
def test_what_it_cannot_do_is_torchs(folder, caplog, given, reason):
    """The log says why; who asked for it gets the reason as an error."""
    with caplog.at_level(logging.INFO):
        model = open_language(asked(folder, **given)).model
    assert isinstance(model._decoder, LlamaDecoder)
    assert f"torch computes it. {folder}: OpenVINO does not run it: {reason}" in caplog.text
    with pytest.raises(Unsupported, match=f"OpenVINO does not run it: {reason}"):
        open_language(asked(folder, engine="openvino", **given))


def test_keys_and_values_of_eight_bits_are_openvinos(folder):
    """Others refuse them; what a token takes is what is planned for it."""
    make(folder, "llama", head_dim=64)
    model = open_language(asked(folder, cache_dtype="int8")).model
    assert (model.dtype, model._form.dtype) == ("FP32", torch.uint8)
    each = cache_bytes_per_token(read_checkpoint(folder), INT8)
    assert model.cache_bytes_per_block() == 32 * each == 32 * 3 * 2 * 2 * (64 + 8)
    wrong = "kv_cache_dtype 'int8' .* engine 'openvino', not for torch; take kv_cache_dtype 'bf16'"
    with pytest.raises(Unsupported, match=wrong):
        open_language(asked(folder, cache_dtype="int8", engine="torch"))
    make(folder, "gpt2")
    with pytest.raises(Unsupported, match="architecture GPT2LMHeadModel"):
        open_language(asked(folder, cache_dtype="int8"))


def test_a_cache_that_steps_of_one_token_misread_is_refused(folder, monkeypatch):
    """As OpenVINO's was for heads of 12 numbers; the error says which parameter to change."""
    read = module.log_probabilities

    def misread(decoder, ids, singles=0):
        found = read(decoder, ids, singles)
        return found.flip(-1) if singles else found

    monkeypatch.setattr(module, "log_probabilities", misread)
    wrong = (
        r"'int8' with heads of 8 numbers: steps of one token .* by KL [0-9.]+ nats.*take 'model'"
    )
    with pytest.raises(Unsupported, match=wrong):
        open_language(asked(folder, cache_dtype="int8"))


def test_no_engine_is_for_a_device_that_computes_none(folder):
    """Neither is imported for it."""
    with pytest.raises(DeviceUnavailable, match="no engine computes a text generator on 'moon:1'"):
        open_language(asked(folder, device="moon:1"))


def test_a_processor_without_bf16_computes_in_fp32(folder, monkeypatch, caplog):
    """Weights stay in BF16; OpenVINO would refuse a cache of it there. A cache in BF16 is torch's."""
    monkeypatch.setattr(module, "computed_in", lambda _: torch.float32)
    with caplog.at_level(logging.INFO):
        model = open_language(asked(folder, precision="bf16")).model
    assert isinstance(model._decoder, OpenVinoDecoder)
    assert (model.dtype, model._form.dtype) == ("FP32", torch.float32)
    assert "this processor has no BF16: weights of it are computed in FP32" in caplog.text
    kept = open_language(asked(folder, precision="bf16", cache_dtype="bf16")).model
    assert isinstance(kept._decoder, LlamaDecoder)


def test_other_architectures_are_torchs(tmp_path):
    """GPT-2 is run by transformers' modules."""
    make(tmp_path, "gpt2")
    open_language(asked(tmp_path)).model.close()
    with pytest.raises(Unsupported, match="architecture GPT2LMHeadModel"):
        open_language(asked(tmp_path, engine="openvino"))


PACKAGES = "ge_backend.engines.ov.", "ge_text.openvino."


def test_where_it_is_not_installed_torch_does_it(folder, monkeypatch):
    """Who asked for it is told what to type."""
    for name in [name for name in sys.modules if name.startswith(PACKAGES)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert isinstance(open_language(asked(folder)).model._decoder, LlamaDecoder)
    with pytest.raises(DeviceUnavailable, match=r"needs openvino; pip install .*\[openvino\]"):
        open_language(asked(folder, engine="openvino"))


WIDE = {"hidden_size": 64, "intermediate_size": 96}


@pytest.fixture
def eight_bits(monkeypatch):
    """A processor that multiplies numbers of eight bits, or is taken for one."""
    monkeypatch.setattr(module, "has_int8", lambda: True)


def test_weights_of_eight_bits_by_one_word(tmp_path, caplog, eight_bits):
    """All else is as in BF16; the log says how near the scores are."""
    make(tmp_path, "llama", initializer_range=0.1, **WIDE)
    with caplog.at_level(logging.INFO):
        model = open_language(asked(tmp_path, precision="int8")).model
    assert model._decoder.compressed > 90_000
    assert model._decoder.dtype == computed_in(torch.bfloat16)
    assert "precision 'int8' is near enough: KL 0.0" in caplog.text


def test_a_model_that_loses_too_much_is_served_in_the_next_precision(tmp_path, caplog, eight_bits):
    """The log has the figure and what keeps it; whoever says that keeps it."""
    make(tmp_path, "llama", initializer_range=0.5, **WIDE)
    model = open_language(asked(tmp_path, precision="int8")).model
    assert not model._decoder.compressed
    (line,) = [r.getMessage() for r in caplog.records if "too far" in r.getMessage()]
    (found,) = re.findall("precision 'int8' is too far from BF16: KL ([0-9.]+)", line)
    assert 0.05 < float(found) < 0.5
    assert "expected 0.05 or less; served in BF16; the parameter 'assume: precision'" in line
    kept = open_language(asked(tmp_path, precision="int8", assumed=True)).model
    assert kept._decoder.compressed


@pytest.mark.parametrize(("spread", "compressed"), [(0.1, True), (0.5, False)])
def test_what_is_known_of_a_checkpoint_is_not_compiled_for(
    tmp_path, monkeypatch, eight_bits, spread, compressed
):
    """The first load compiles it both ways, later ones as it is served."""
    make(tmp_path, "llama", initializer_range=spread, **WIDE)
    figures, compiled, load = {}, [], module.load_openvino

    def kept(files, measure):
        return figures[files] if files in figures else figures.setdefault(files, measure())

    def counted(*given, compressed=False, **named):
        compiled.append(compressed)
        return load(*given, compressed=compressed, **named)

    monkeypatch.setattr(module, "load_openvino", counted)
    ways = []
    for _ in range(2):
        opened = open_language(asked(tmp_path, precision="int8", kept=kept))
        assert bool(opened.model._decoder.compressed) is compressed
        ways.append(compiled.copy())
        compiled.clear()
    first = [False, True] if compressed else [False, True, False]
    assert ways == [first, [compressed]]


def test_the_first_decoder_is_freed_before_the_second_is_compiled(
    tmp_path, monkeypatch, eight_bits
):
    """One of both is in memory at a time."""
    make(tmp_path, "llama", initializer_range=0.5, **WIDE)
    alive, load = weakref.WeakSet(), module.load_openvino

    def counted(*given, **named):
        gc.collect()
        assert not [one for one in alive if hasattr(one, "_compiled")]
        decoder = load(*given, **named)
        alive.add(decoder)
        return decoder

    monkeypatch.setattr(module, "load_openvino", counted)
    served = open_language(asked(tmp_path, precision="int8")).model
    gc.collect()
    assert list(alive) == [served._decoder]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"engine": "torch"}, "engine 'openvino', not for torch; take precision 'bf16'"),
        ({"device": "cuda:0"}, "engine 'openvino', not for cuda:0"),
        ({"block_size": 16}, "block_size 16"),
        ({"padded": True}, "buckets"),
    ],
)
def test_eight_bits_are_refused_where_they_cannot_be(folder, eight_bits, given, reason):
    """No other engine takes the model over: it would be another precision."""
    with pytest.raises(Unsupported, match=reason):
        open_language(asked(folder, precision="int8", **given))


def test_a_processor_without_products_of_eight_bits_refuses_them(folder, monkeypatch):
    """The message has what it would need, and what to take."""
    monkeypatch.setattr(module, "has_int8", lambda: False)
    with pytest.raises(Unsupported, match=r"no products of 8 bits.*avx512_vnni.*take 'bf16'"):
        open_language(asked(folder, precision="int8"))


def test_eight_bits_of_a_model_that_openvino_does_not_compute_are_refused(tmp_path, eight_bits):
    """GPT-2 has another skeleton."""
    make(tmp_path, "gpt2")
    with pytest.raises(Unsupported, match="GPT2LMHeadModel"):
        open_language(asked(tmp_path, precision="int8"))


def test_a_model_too_small_for_eight_bits_is_as_in_the_next_precision(folder, caplog, eight_bits):
    """The log says that nothing changed."""
    open_language(asked(folder, precision="int8"))
    assert "precision 'int8' changes nothing" in caplog.text
