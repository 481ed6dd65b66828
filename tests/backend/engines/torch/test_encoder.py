"""Checkpoints of random weights, rows end to end, against transformers on each text alone."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from builders.checkpoints import as_sentence_encoder, write_checkpoint  # noqa: E402
from fakes.torch_vendor import FakeVendor  # noqa: E402
from ge_backend.device.base import GraphSource  # noqa: E402
from ge_backend.engines.torch import slow_half  # noqa: E402
from ge_backend.engines.torch.encoder import PackedEncoder  # noqa: E402
from ge_backend.engines.torch.encoder_accelerator import DeviceLayers  # noqa: E402
from ge_backend.engines.torch.encoder_layers import TorchLayers  # noqa: E402
from ge_backend.engines.torch.pretrained import load_pretrained  # noqa: E402
from ge_backend.engines.torch.streams import Streams  # noqa: E402
from ge_backend.errors import GraphFailed, ModelError, Unsupported  # noqa: E402
from ge_backend.model.files.encoder_folder import read_encoder_folder  # noqa: E402

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
SIZES = {"vocab_size": 200, "num_hidden_layers": 3, "max_position_embeddings": 200, **SMALL}
LENGTHS = 3, 11, 1, 11, 7
KINDS = {
    "bert": (transformers.BertConfig, transformers.BertModel),
    "roberta": (transformers.RobertaConfig, transformers.RobertaModel),
    "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel),
    "electra": (transformers.ElectraConfig, transformers.ElectraModel),
    "modernbert": (transformers.ModernBertConfig, transformers.ModernBertModel),
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODERN = SPECIAL | {"cls_token_id": 1, "sep_token_id": 2}
GROUPED = {"num_key_value_heads": 1}
CLASSIFIERS = [
    ("Bert", {}),
    ("Roberta", {}),
    ("Electra", {}),
    ("Albert", {"embedding_size": 8}),
    ("DistilBert", {"dim": 16, "hidden_dim": 32, "n_heads": 2, "initializer_range": 0.5}),
    ("ModernBert", MODERN),
    ("ModernBert", MODERN | {"classifier_pooling": "mean"}),
    ("EuroBert", SPECIAL | {"classifier_pooling": "late"}),
    ("Llama", {}),
    ("Mistral", GROUPED | {"sliding_window": 4}),
    ("Qwen3", GROUPED | {"head_dim": 8, "pad_token_id": 0}),
    ("GPT2", {"n_positions": 200}),
]

DECODERS = [
    ("Llama", {}),
    ("Llama", {"is_causal": False}),
    ("Mistral", GROUPED | {"sliding_window": 4}),
    ("Qwen2", GROUPED | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("Qwen3", GROUPED | {"head_dim": 8}),
    ("GPT2", {"n_positions": 200}),
]


@pytest.fixture(params=["torch", "openvino", "accelerator"])
def open_encoder(request):
    """Return how a folder is opened with the layers of an engine: what runs ids, mask and types."""
    engine = TorchLayers
    if request.param == "openvino":
        pytest.importorskip("openvino")
        from ge_backend.engines.ov.encoder import OpenVinoLayers

        engine = OpenVinoLayers
    if request.param == "accelerator":
        source = GraphSource(path="config.json", stamp="")
        engine = partial(DeviceLayers, source=source, streams=Streams(FakeVendor()))

    def opened(folder, dtype=torch.float32):
        encoder = PackedEncoder(read_encoder_folder(folder), dtype)
        layers = engine(encoder).layers(1, 2)
        encoder.difference(layers)

        def run(*given):
            return torch.from_numpy(encoder.run(layers, *(each.numpy() for each in given)))

        return run

    return opened


def batch(vocabulary=200):
    """Ids and mask of rows of unequal lengths; what is masked is garbage."""
    torch.manual_seed(3)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    return torch.randint(3, vocabulary, mask.shape), mask


def alone(model, ids, output):
    """What the model itself says of each row by itself."""
    with torch.inference_mode():
        return [
            getattr(model(input_ids=row[None, :length]), output)[0]
            for row, length in zip(ids, LENGTHS, strict=True)
        ]


def saved(folder, kind, **more):
    torch.manual_seed(7)
    config, model = KINDS[kind]
    if kind == "modernbert":
        more |= {"local_attention": 8, "pad_token_id": 0}
        more |= {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    made = model(config(**(SIZES | more))).eval()
    made.save_pretrained(folder)
    return made


def decoder(kind, task, more):
    """A decoder's body of random weights with what is behind it, in which tokens see one another."""
    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **more, initializer_range=0.2)
    return getattr(transformers, f"{kind}{task}")(config).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_as_it_is_alone(kind, open_encoder, tmp_path):
    """Token by token, whatever lies beside it; masked places are 0."""
    model = saved(tmp_path, kind)
    ids, mask = batch()
    found = open_encoder(tmp_path)(ids, mask)

    for row, expected in enumerate(alone(model, ids, "last_hidden_state")):
        torch.testing.assert_close(found[row, : LENGTHS[row]], expected, atol=1e-5, rtol=1e-5)
        assert not found[row, LENGTHS[row] :].any()


def test_a_token_of_padding_in_a_text_is_not_counted(open_encoder, tmp_path):
    """RoBERTa gives it a place of its own, and the tokens behind it the places before."""
    model = saved(tmp_path, "roberta")
    ids, mask = batch()
    ids[0, 1] = ids[1, 4:6] = ids[4, 0] = model.config.pad_token_id
    found = open_encoder(tmp_path)(ids, mask)
    for row, expected in enumerate(alone(model, ids, "last_hidden_state")):
        torch.testing.assert_close(found[row, : LENGTHS[row]], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_masked_places_before_a_text_count_as_in_transformers(kind, open_encoder, tmp_path):
    """Padding on the left moves the positions of BERT's tokens, and not those of RoBERTa's."""
    model = saved(tmp_path, kind)
    ids, mask = (each.flip(1) for each in batch())
    padding = model.config.pad_token_id
    ids = torch.where(mask == 0, padding, ids)
    found = open_encoder(tmp_path)(ids, mask)
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    real = mask != 0
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "more"), DECODERS)
def test_a_token_of_a_decoder_sees_none_behind_it(kind, more, dtype, open_encoder, tmp_path):
    """Nor one beyond its window; a folder may say that it sees the whole text all the same."""
    model = decoder(kind, "Model", more)
    model.save_pretrained(tmp_path)
    ids, mask = batch()
    found = open_encoder(tmp_path, dtype)(ids, mask)
    near = 1e-4 if dtype == torch.float32 else 0.1
    for row, expected in enumerate(alone(model.to(dtype), ids, "last_hidden_state")):
        one = found[row, : LENGTHS[row]]
        torch.testing.assert_close(one, expected.float(), atol=near, rtol=near)


@pytest.mark.parametrize("holes", [[2, 3], [6], []])
def test_a_local_window_counts_masked_places_between_tokens(holes, open_encoder, tmp_path):
    """As in transformers: tokens of a row see each other by where they stood in it."""
    model = saved(tmp_path, "modernbert")
    ids, _ = batch()
    mask = torch.ones_like(ids)
    mask[1:3, holes] = 0
    found = open_encoder(tmp_path)(ids, mask)
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    real = mask != 0
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "max_tokens", "lasttoken"])
def test_rows_are_pooled_as_the_folder_says(mode, open_encoder, tmp_path):
    """To unit length; a row without any token is 0, and its neighbours are right."""
    folder = as_sentence_encoder(write_checkpoint(tmp_path), mode)
    ids, mask = batch()
    mask[2] = 0
    found = open_encoder(folder)(ids, mask)

    model = transformers.BertModel.from_pretrained(folder).eval()
    how = {
        "mean_tokens": lambda one: one.mean(0),
        "cls_token": lambda one: one[0],
        "max_tokens": lambda one: one.amax(0),
        "lasttoken": lambda one: one[-1],
    }[mode]
    rows = [how(one) for one in alone(model, ids, "last_hidden_state")]
    expected = torch.nn.functional.normalize(torch.stack(rows), dim=1)
    expected[2] = 0
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_body_of_what_writes_text_gives_embeddings(open_encoder, tmp_path):
    """Where the folder says how they are pooled; masked places before a text are none of it."""
    decoder("Qwen3", "ForCausalLM", GROUPED | {"head_dim": 8}).save_pretrained(tmp_path)
    folder = as_sentence_encoder(tmp_path, "lasttoken")
    model = transformers.AutoModel.from_pretrained(folder).eval()
    ids, mask = batch()
    states = [one[-1] for one in alone(model, ids, "last_hidden_state")]
    expected = torch.nn.functional.normalize(torch.stack(states), dim=1)
    run = open_encoder(folder)
    torch.testing.assert_close(run(ids, mask), expected, atol=1e-5, rtol=1e-4)
    before = [mask.shape[1] - length for length in LENGTHS]
    left = [torch.stack(list(map(torch.roll, each, before))) for each in (ids, mask)]
    torch.testing.assert_close(run(*left), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("task", ["Sequence", "Token"])
@pytest.mark.parametrize(("kind", "more"), CLASSIFIERS)
def test_a_classifier_gives_the_scores_of_transformers(kind, more, task, open_encoder, tmp_path):
    """Of texts or tokens, whatever its head makes of which of them; masked places are 0."""
    config = getattr(transformers, f"{kind}Config")(**SIZES, **more, num_labels=5)
    torch.manual_seed(7)
    model = getattr(transformers, f"{kind}For{task}Classification")(config).eval()
    model.save_pretrained(tmp_path)
    ids, mask = batch()
    mask[2] = 0
    found = open_encoder(tmp_path)(ids, mask)
    assert not found[2].any()
    for row, expected in enumerate(alone(model, ids, "logits")):
        if row == 2:
            continue
        one = found[row, : LENGTHS[row]] if task == "Token" else found[row]
        torch.testing.assert_close(one, expected, atol=1e-5, rtol=1e-5)
        assert task == "Sequence" or not found[row, LENGTHS[row] :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Bert", {}),
        ("Albert", {"embedding_size": 8}),
        ("Electra", {}),
        ("Roberta", {"type_vocab_size": 3}),
    ],
)
def test_of_a_pair_the_second_text_is_told(kind, more, dtype, open_encoder, tmp_path):
    """As transformers scores it; types that are not sent are 0, and masked ones are nothing."""
    config = getattr(transformers, f"{kind}Config")(**SIZES | more, initializer_range=0.2)
    torch.manual_seed(7)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    model.save_pretrained(tmp_path)
    model.set_attn_implementation("eager")
    ids, mask = batch()
    types = torch.randint(config.type_vocab_size, ids.shape)
    run = open_encoder(tmp_path, dtype)
    near = 1e-5 if dtype == torch.float32 else 0.02
    for sent in (types, torch.zeros_like(types)):
        found = run(ids, mask, torch.where(mask == 0, 10**9, sent))
        with torch.inference_mode():
            expected = [
                model.to(dtype)(row[None, :length], token_type_ids=own[None, :length]).logits[0]
                for row, own, length in zip(ids, sent, LENGTHS, strict=True)
            ]
        torch.testing.assert_close(found, torch.stack(expected).float(), atol=near, rtol=near)
    torch.testing.assert_close(run(ids, mask), found, atol=1e-6, rtol=1e-6)
    assert (run(ids, mask, types) - found).abs().max() > 2 * near


@pytest.mark.parametrize("wrong", [-1, 2, 10**9])
def test_a_type_that_there_is_not_is_refused(wrong, open_encoder, tmp_path):
    """As a token that is not in the vocabulary is; an accelerator would break."""
    saved(tmp_path, "bert")
    ids, mask = batch()
    run = open_encoder(tmp_path)
    types = torch.zeros_like(ids)
    types[1, 2] = wrong
    with pytest.raises((GraphFailed, IndexError), match="out of range"):
        run(ids, mask, types)


def test_an_engine_that_does_not_tell_types_apart_is_refused(tmp_path):
    """What is compared at load has all types that the modules take."""
    saved(tmp_path, "bert", type_vocab_size=4)
    encoder = PackedEncoder(read_encoder_folder(tmp_path), torch.float32)
    assert set(encoder.example.types.tolist()) == {0, 1, 2, 3}
    layers = TorchLayers(encoder).layers(1, 1)
    encoder.difference(layers)
    with pytest.raises(Unsupported, match="rows end to end differ from rows alone"):
        encoder.difference(lambda packed: layers(dataclasses.replace(packed, types=None)))


def test_bf16_is_near(open_encoder, tmp_path):
    """The weights are BF16, the output FP32."""
    model = saved(tmp_path, "bert")
    ids, mask = batch()
    found = open_encoder(tmp_path, torch.bfloat16)(ids, mask)
    assert found.dtype == torch.float32
    for row, expected in enumerate(alone(model, ids, "last_hidden_state")):
        apart = (found[row, : LENGTHS[row]] - expected).abs().max()
        assert 0 < apart < 0.1


def test_a_decoders_head_passes_over_padding_at_the_end_of_a_text(open_encoder, tmp_path):
    """Also where it is real, as an end of text is that pads, too; what is in a text counts."""
    decoder("Llama", "ForSequenceClassification", {"pad_token_id": 0}).save_pretrained(tmp_path)
    model = transformers.LlamaForSequenceClassification.from_pretrained(tmp_path).eval()
    ids, mask = batch()
    ids[1, 2] = ids[1, 9:] = ids[2] = ids[3, 5] = ids[4, 6] = 0
    found = open_encoder(tmp_path)(ids, mask)
    torch.testing.assert_close(found, torch.stack(alone(model, ids, "logits")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bf16", [True, False])
def test_bf16_on_a_processor_without_it_is_told(tmp_path, monkeypatch, caplog, dtype, has_bf16):
    """Where torch computes it; the line names the folder."""
    monkeypatch.setattr(slow_half, "_has_bf16", lambda: has_bf16)
    saved(tmp_path, "bert")
    TorchLayers(PackedEncoder(read_encoder_folder(tmp_path), dtype))
    told = f"{tmp_path}: torch computes BF16 slowly" in caplog.text
    assert told == (dtype == torch.bfloat16 and not has_bf16)


def test_what_mixes_tokens_outside_of_attention_is_refused(open_encoder, tmp_path):
    """Such as convolutions; the message says so and what else there is."""
    config = transformers.ConvBertConfig(**(SIZES | {"embedding_size": 16, "head_ratio": 1}))
    transformers.ConvBertModel(config).eval().save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=r"ge-backend import"):
        open_encoder(tmp_path)


def test_a_large_number_does_not_hide_that_rows_see_each_other(open_encoder, tmp_path):
    """In BF16 all others may be wrong within what rounding makes of it."""
    config = transformers.MPNetConfig(**SIZES, pad_token_id=1)
    torch.manual_seed(0)
    model = transformers.MPNetModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.25)
        model.encoder.layer[-1].output.LayerNorm.bias[5] = 40
    model.save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=r"a row changes by .* tokens of other rows: MPNetModel"):
        open_encoder(tmp_path, torch.bfloat16)


def test_an_engine_that_adds_up_in_no_fixed_order_is_taken(tmp_path):
    """What differs from run to run is no other row's doing."""
    saved(tmp_path, "bert")
    encoder = PackedEncoder(read_encoder_folder(tmp_path), torch.bfloat16)
    layers = TorchLayers(encoder).layers(1, 1)
    noise = count(0.01, 0.01)
    assert encoder.difference(lambda packed: layers(packed) + next(noise)) < 0.1


def test_an_encoder_without_the_attention_interface_is_refused(open_encoder, tmp_path):
    """By each engine, also where that fails to convert what would compute every row's neighbours."""
    sizes = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 256}
    config = transformers.XLMConfig(vocab_size=200, **sizes)
    transformers.XLMModel(config).eval().save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=r"rows end to end|does not compute its layers"):
        open_encoder(tmp_path)


def test_an_encoder_of_no_texts_is_refused(open_encoder, tmp_path):
    """It has no vocabulary."""
    config = transformers.ViTConfig(num_hidden_layers=1, image_size=32, patch_size=8, **SMALL)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=r"does not run it end to end: .* 'vocab_size'"):
        open_encoder(tmp_path)


class Slow:
    """Loads as transformers does: what it makes is of the default type, which it sets."""

    def from_pretrained(self, _folder, dtype, **_):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            time.sleep(0.05)
            return torch.nn.Linear(1, 1), {"missing_keys": (), "mismatched_keys": ()}
        finally:
            torch.set_default_dtype(before)


def test_models_that_load_at_once_have_each_its_own_type(tmp_path):
    """Weights were of both types, and torch kept on with one that nobody had asked for."""
    dtypes = [torch.float32, torch.bfloat16] * 2
    usual = torch.get_default_dtype()
    try:
        with ThreadPoolExecutor(len(dtypes)) as pool:
            models = list(pool.map(partial(load_pretrained, Slow(), tmp_path), dtypes))
        assert [model.weight.dtype for model in models] == dtypes
        assert torch.get_default_dtype() == usual
    finally:
        torch.set_default_dtype(usual)


def test_weights_that_nothing_computes_with_are_told(tmp_path, caplog):
    """Such as the layer of a ColBERT, but not what a checkpoint was trained with before."""
    config = transformers.BertConfig(**SIZES)
    transformers.BertForPreTraining(config).save_pretrained(tmp_path)
    PackedEncoder(read_encoder_folder(tmp_path), torch.float32)
    assert not caplog.records
    weights = load_file(tmp_path / "model.safetensors") | {"linear.weight": torch.zeros(8, 16)}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    PackedEncoder(read_encoder_folder(tmp_path), torch.float32)
    assert f"{tmp_path}: BertModel computes nothing with linear.weight, so" in caplog.text


def test_weights_of_another_size_are_refused(open_encoder, tmp_path):
    """By name, as a fault of the files."""
    saved(tmp_path, "bert")
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"vocab_size": 200', '"vocab_size": 300'))
    with pytest.raises((ModelError, Unsupported), match=r"embeddings|size mismatch|mismatched"):
        open_encoder(tmp_path)


def test_a_classifier_without_the_pooler_that_it_looks_at_is_refused(open_encoder, tmp_path):
    """Its weights would be random; nothing else looks there."""
    folder = write_checkpoint(tmp_path, classifier=True)
    weights = load_file(folder / "model.safetensors")
    kept = {name: each for name, each in weights.items() if "pooler" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"missing keys: bert\.pooler\.dense\.bias"):
        open_encoder(folder)


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "max_tokens", "lasttoken"])
def test_a_batch_without_any_token_is_0(mode, open_encoder, tmp_path):
    """Nothing is computed, and nothing fails."""
    folder = as_sentence_encoder(write_checkpoint(tmp_path), mode)
    ids, mask = batch()
    found = open_encoder(folder)(ids, mask * 0)
    assert found.shape == (len(ids), 16)
    assert not found.any()
