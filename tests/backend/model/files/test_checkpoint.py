"""A checkpoint folder is described from JSON and headers; what cannot be served says why."""

import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ge_backend.errors import ModelError
from ge_backend.model.files.checkpoint import is_checkpoint, read_checkpoint
from ge_backend.model.files.model_file import find_model_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}


def write(folder: Path, config=(), *, weights=True, **files) -> Path:
    """Write a small folder; `files` are JSON files by their stem."""
    content = {**CONFIG, **dict(config)}
    (folder / "config.json").write_text(json.dumps(content))
    for stem, value in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(value))
    if weights:
        save_file({"w": np.ones((4, 4), np.float32)}, folder / "model.safetensors")
    return folder


def test_a_complete_folder_is_described(tmp_path):
    """What the host needs to know is there without an engine."""
    write(
        tmp_path,
        tokenizer={},
        generation_config={
            "eos_token_id": [2, 7],
            "temperature": 0.5,
            "top_k": None,
            "max_new_tokens": 9,
        },
    )
    found = read_checkpoint(tmp_path)
    assert (found.model_type, found.vocabulary, found.max_positions) == ("llama", 50, 64)
    assert found.eos == (2, 7)
    assert found.sampling == {"temperature": 0.5, "max_new_tokens": 9}
    assert found.tokenizer == tmp_path / "tokenizer.json"
    assert found.cache_elements_per_token() == 2 * 3 * 2 * 4
    assert (found.dtype, found.weight_bytes) == ("FP32", 64)
    names = {"config.json", "tokenizer.json", "generation_config.json", "model.safetensors"}
    assert {path.name for path in found.files} == names
    assert is_checkpoint(tmp_path)


def test_without_a_generation_config_the_end_is_the_models_own(tmp_path):
    """Older checkpoints say it in config.json; some say nothing."""
    assert read_checkpoint(write(tmp_path)).eos == (2,)
    assert read_checkpoint(write(tmp_path, {"eos_token_id": None})).eos == ()
    unsaid = write(tmp_path, generation_config={"eos_token_id": None})
    assert read_checkpoint(unsaid).eos == (2,)
    assert read_checkpoint(tmp_path).tokenizer is None


def test_older_names_of_sizes_are_known(tmp_path):
    """GPT-2's configuration has its own words."""
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 128, "vocab_size": 9}
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"w": np.ones(2, np.float16)}, tmp_path / "model.safetensors")
    found = read_checkpoint(tmp_path)
    assert (found.max_positions, found.cache_elements_per_token()) == (128, 2 * 2 * 4 * 8)
    assert found.dtype == "FP16"


@pytest.mark.parametrize(
    ("config", "rotary"),
    [
        ({}, {"rope_type": "default"}),
        ({"rope_theta": 5.0}, {"rope_type": "default", "rope_theta": 5.0}),
        (
            {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "type": "linear", "factor": 2.0, "rope_theta": 5.0},
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 7.0}},
            {"rope_type": "llama3", "rope_theta": 7.0},
        ),
    ],
)
def test_rotary_settings_have_one_form(tmp_path, config, rotary):
    """Files of several years put them in different places."""
    assert read_checkpoint(write(tmp_path, config)).rotary == rotary


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_rotation_that_follows_the_longest_neighbour_ends_where_it_begins_to(tmp_path, kind):
    """Else the tokens of one text would depend on what else is in its batch."""
    scaling = {"rope_type": kind, "factor": 4.0}
    assert read_checkpoint(write(tmp_path, {"rope_scaling": scaling})).max_positions == 64
    scaling["original_max_position_embeddings"] = 16
    assert read_checkpoint(write(tmp_path, {"rope_scaling": scaling})).max_positions == 16


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "yarn", "factor": 4.0}, 256),
        ({"rope_type": "linear", "factor": 2.5}, 160),
        ({"rope_type": "linear"}, 64),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8}, 64),
    ],
)
def test_a_scaled_rotation_lengthens_the_model(tmp_path, scaling, positions):
    """As model cards tell people to do, whether or not the larger number stands beside it."""
    assert read_checkpoint(write(tmp_path, {"rope_scaling": scaling})).max_positions == positions


def test_gemma_3_says_its_length_with_the_scaling(tmp_path):
    """Its factor of 8 is in the number already."""
    config = {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert read_checkpoint(write(tmp_path, config)).max_positions == 64


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": "4"},
        {"rope_type": "linear", "factor": math.inf},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": [64]},
    ],
)
def test_a_scaling_that_is_no_number_is_refused(tmp_path, scaling):
    """The message names the setting."""
    with pytest.raises(ModelError, match=r"of the rotary embedding is .*expected a number above 0"):
        read_checkpoint(write(tmp_path, {"rope_scaling": scaling}))


@pytest.mark.parametrize("place", ["config", "generation_config"])
def test_an_end_that_the_vocabulary_lacks_ends_nothing(tmp_path, place, caplog):
    """It can never be drawn, and whoever forbade it would forbid a token of the next row."""
    said = {"eos_token_id": [2, 50, -1, 49]}
    found = read_checkpoint(write(tmp_path, **{place: said}))
    assert found.eos == (2, 49)
    assert "eos_token_id 50, -1 ends nothing: the model's tokens are 0 to 49" in caplog.text


def test_sharded_weights_are_those_of_the_index(tmp_path):
    """A file that the index does not name is not read."""
    write(tmp_path, weights=False)
    for part, name in enumerate("ab"):
        save_file({name: np.ones(2, np.float32)}, tmp_path / f"part-{part}.safetensors")
    save_file({"c": np.ones(2, np.float32)}, tmp_path / "other.safetensors")
    index = {"weight_map": {"a": "part-0.safetensors", "b": "part-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_checkpoint(tmp_path)
    assert [path.name for path in found.weights] == ["part-0.safetensors", "part-1.safetensors"]
    assert set(found.tensors) == {"a", "b"}
    assert tmp_path / "model.safetensors.index.json" in found.files


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ({"a": "gone.safetensors"}, "names gone.safetensors, which is not beside it"),
        ({"a": "../model.safetensors"}, "which is not beside it"),
        ({"b": "part.safetensors"}, "'b' should be in part.safetensors"),
        ({}, "weight_map is missing"),
        (None, "weight_map is missing"),
    ],
)
def test_an_index_that_is_wrong_is_refused(tmp_path, places, reason):
    """A shard that was not copied shows at once, by its name."""
    write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "part.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ModelError, match=reason):
        read_checkpoint(tmp_path)


def test_several_files_need_an_index(tmp_path):
    """Which of them belong together is not guessed."""
    write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "some.safetensors")
    save_file({"v": np.ones(2, np.float32)}, tmp_path / "more.safetensors")
    with pytest.raises(
        ModelError, match=r"2 safetensors files, none .* no model\.safetensors\.index"
    ):
        read_checkpoint(tmp_path)


def test_what_lies_beside_whole_weights_is_not_read(tmp_path):
    """Mistral's folders have them twice: `consolidated.safetensors` is for its own programs."""
    write(tmp_path)
    save_file({"v": np.ones(2, np.float32)}, tmp_path / "consolidated.safetensors")
    found = read_checkpoint(tmp_path)
    assert [path.name for path in found.weights] == ["model.safetensors"]
    assert set(found.tensors) == {"w"}


@pytest.mark.parametrize("place", ["model-00001-of-00002.safetensors", "old.safetensors"])
def test_an_index_beside_whole_weights_is_not_read(tmp_path, place):
    """One that was left there when the weights were saved anew, whether or not its files were."""
    write(tmp_path)
    save_file({"v": np.ones(2, np.float32)}, tmp_path / "old.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"v": place}}))
    found = read_checkpoint(tmp_path)
    assert [path.name for path in found.weights] == ["model.safetensors"]
    assert set(found.tensors) == {"w"}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM, which does not predict"),
        ({"architectures": None}, "architectures is nothing"),
        ({"is_encoder_decoder": True}, "only decoders"),
        ({"vocab_size": 0}, "vocab_size is None"),
        ({"vocab_size": "50"}, "vocab_size is '50'"),
        ({"max_position_embeddings": None}, "max_position_embeddings is None"),
        ({"num_attention_heads": -4}, "num_attention_heads is -4"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM', .* list"),
        ({"architectures": 1}, "architectures is 1, expected a list"),
        ({"head_dim": [8]}, r"head_dim is \[8\], expected a whole number above 0"),
        ({"head_dim": math.nan}, "head_dim is nan, expected a whole number above 0"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear', expected an object"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], expected an object"),
        ({"rope_scaling": {"type": ["a"]}}, r"rope_type .* is \['a'\], expected a name"),
        ({"eos_token_id": {}}, r"eos_token_id is \{\}, expected a token's number"),
        ({"eos_token_id": ["2"]}, r"eos_token_id is \['2'\], expected a token's number"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(tmp_path, config, reason):
    """The message names the file and what is in the way."""
    with pytest.raises(ModelError, match=rf"config\.json: .*{reason}"):
        read_checkpoint(write(tmp_path, config))


@pytest.mark.parametrize(
    ("name", "sizes", "lacking"),
    [
        ("Bloom", {"n_layer": 2, "n_head": 4, "hidden_size": 32}, "max_position_embeddings or n_p"),
        ("GPTNeo", {"num_layers": 2, "num_heads": 4}, "num_attention_heads or n_head,"),
        ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}, "num_attention_heads or n_head,"),
        ("Mamba", {"hidden_size": 32, "num_hidden_layers": 2}, "max_position_embeddings or n_p"),
    ],
)
def test_an_architecture_of_other_settings_is_the_reason(tmp_path, name, sizes, lacking):
    """Its file is as it should be, and nothing in it has to be changed."""
    positions = {"GPTNeo": "max_position_embeddings", "Mpt": "max_seq_len"}.get(name)
    config = {"model_type": name.lower(), "vocab_size": 50, **sizes}
    config |= {"architectures": [f"{name}ForCausalLM"]} | ({positions: 64} if positions else {})
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"w": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(
        ModelError, match=rf"expected {lacking}.*: {name}ForCausalLM is another one"
    ):
        read_checkpoint(tmp_path)
    assert read_checkpoint(tmp_path, quantised=True).vocabulary == 50  # as for vLLM, which has it


def test_a_name_that_is_no_list_is_a_decoders_all_the_same(tmp_path):
    """So that the reader of checkpoints says what is wrong, not that of encoders."""
    assert is_checkpoint(write(tmp_path, {"architectures": "LlamaForCausalLM"}))


@pytest.mark.parametrize("sign", ["config.json", "hf_quant_config.json", "tensor 'w'"])
def test_quantised_weights_are_for_those_who_take_them(tmp_path, sign):
    """VLLM does; others refuse whatever shows that they are, and would read them without scales."""
    write(tmp_path, {"quantization_config": {"bits": 4}} if sign == "config.json" else {})
    if sign == "hf_quant_config.json":  # as ModelOpt writes it, beside a config.json that is silent
        (tmp_path / "hf_quant_config.json").write_text("{}")
    if sign == "tensor 'w'":
        header = b'{"w":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'
        content = struct.pack("<Q", len(header)) + header + bytes(2)
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=f"quantised, as {sign} shows; only engine 'vllm'"):
        read_checkpoint(tmp_path)
    assert read_checkpoint(tmp_path, quantised=True).weights


def test_a_null_quantises_nothing(tmp_path):
    """Some tools write every name that there is."""
    assert read_checkpoint(write(tmp_path, {"quantization_config": None})).dtype == "FP32"


def test_code_that_a_checkpoint_brings_is_left_aside(tmp_path):
    """Many were published before transformers had their architecture, and name code since then."""
    mapped = {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    assert read_checkpoint(write(tmp_path)).code_hint == ""
    found = read_checkpoint(write(tmp_path, mapped, tokenizer_config=mapped))
    assert "no such code is run" in found.code_hint


def test_pickles_are_not_weights(tmp_path):
    """A file that could run code is never opened; the message says how to convert it."""
    write(tmp_path, weights=False)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ModelError, match=r"no \*\.safetensors .*pytorch_model\.bin.*save_pret"):
        read_checkpoint(tmp_path)


def test_a_folder_without_a_config_says_what_a_checkpoint_has(tmp_path):
    """The first thing that goes wrong by hand."""
    with pytest.raises(ModelError, match=r"no config\.json in .* tokenizer\.json"):
        read_checkpoint(tmp_path)
    assert not is_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "\udcff", "[" * 200_000, "null"])
def test_broken_json_is_refused_by_name(tmp_path, text):
    """It is somebody else's file until it is read."""
    write(tmp_path)
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match=r"config\.json"):
        read_checkpoint(tmp_path)
    assert not is_checkpoint(tmp_path)


def test_some_other_config_is_no_checkpoint(tmp_path):
    """A file of that name beside an ONNX model does not change what the folder is."""
    (tmp_path / "config.json").write_text('{"name": "mine"}')
    assert not is_checkpoint(tmp_path)


@pytest.mark.parametrize("graph", ["model.onnx", "model.pt", "decoder.onnx", "model.null"])
@pytest.mark.parametrize("names", [["GPT2LMHeadModel"], ["BertModel"], []])
def test_a_graph_without_a_checkpoints_weights_is_served(tmp_path, graph, names):
    """As exports have them: their config.json says what was exported."""
    write(tmp_path, {"architectures": names}, weights=False, tokenizer={})
    (tmp_path / graph).touch()
    assert not is_checkpoint(tmp_path)
    assert is_checkpoint(tmp_path, "config.json") == (names != ["BertModel"])
    assert find_model_file(tmp_path, "").name == graph


def test_weights_beside_a_graph_are_a_decoders_checkpoint(tmp_path):
    """Unless its configuration names the graph, or says of no architecture that it writes text."""
    write(tmp_path)
    (tmp_path / "model.onnx").touch()
    assert is_checkpoint(tmp_path)
    assert is_checkpoint(tmp_path, "config.json")
    assert is_checkpoint(tmp_path, "model.safetensors")
    assert not is_checkpoint(tmp_path, "model.onnx")
    assert not is_checkpoint(tmp_path, "tokenizer.json")
    write(tmp_path, {"architectures": []})
    assert not is_checkpoint(tmp_path)


def test_a_checkpoint_without_weights_says_so(tmp_path):
    """Graphs in folders below, as on the Hub, and several of other names do not change it."""
    write(tmp_path, weights=False, tokenizer={})
    (tmp_path / "onnx").mkdir()
    for name in ("onnx/model.onnx", "optimizer.pt", "scheduler.pt", "pytorch_model.bin"):
        (tmp_path / name).touch()
    assert is_checkpoint(tmp_path)


def test_describing_a_checkpoint_imports_no_engine(tmp_path):
    """The host does it in a short-lived process of its own."""
    write(tmp_path)
    code = (
        "import sys, pathlib; from ge_backend.model.files.checkpoint import read_checkpoint; "
        f"read_checkpoint(pathlib.Path({str(tmp_path)!r})); "
        "sys.exit(bool({'torch', 'transformers', 'safetensors'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
