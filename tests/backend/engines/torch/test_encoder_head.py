"""Heads of random weights, on hidden states that no encoder has made."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ge_backend.engines.torch.encoder_head import Head  # noqa: E402

SIZES = {"vocab_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}
WIDTH = 16
MODERN = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}


def head(kind, dtype=torch.float32, **more):
    """A classifier of texts, and its head."""
    config = getattr(transformers, f"{kind}Config")(hidden_size=WIDTH, **SIZES, **more)
    torch.manual_seed(1)
    whole = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    return Head(whole.to(dtype).eval().requires_grad_(False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "more", "looked_at"),
    [
        ("Bert", {}, "first"),
        ("Albert", {}, "first"),
        ("ModernBert", MODERN | {"classifier_pooling": "cls"}, "first"),
        ("ModernBert", MODERN | {"classifier_pooling": "mean"}, "mean"),
        ("EuroBert", MODERN | {"classifier_pooling": "late"}, ""),
        ("Llama", {}, "last"),
        ("Qwen3", {"pad_token_id": 5, "num_key_value_heads": 1}, "last"),
        ("GPT2", {}, "last"),
    ],
)
def test_what_it_looks_at_is_found_out(kind, more, looked_at, dtype):
    """No setting says so; its weights are in the type that they were in, as they were."""
    made = head(kind, dtype, **more)
    before = [weight.clone() for weight in made._whole.parameters()]
    assert made.reduction() == looked_at
    after = list(made._whole.parameters())
    assert {weight.dtype for weight in after} == {dtype}
    assert all(map(torch.equal, before, after))


def test_rows_of_unequal_lengths_do_not_touch_each_other():
    """Those of one length go through it together."""
    made = head("EuroBert", **MODERN, classifier_pooling="late")
    hidden = np.random.default_rng(3).normal(size=(9, WIDTH)).astype(np.float32)
    found = made.scores(hidden, [(0, 1, 1), (1, 2, 4)])
    ends = [(0, 1), (1, 5), (5, 9)]
    alone = [made.scores(hidden[begin:end], [(0, 1, end - begin)])[0] for begin, end in ends]
    np.testing.assert_allclose(found, alone, atol=1e-6)


def test_a_decoders_head_takes_several_rows_and_is_quiet(caplog):
    """Also where no token is for padding: none is among what it gets."""
    made = head("Llama")
    assert made.reduction() == "last"
    hidden = np.random.default_rng(3).normal(size=(4, WIDTH)).astype(np.float32)
    found = made.scores(hidden, [(0, 4, 1)])
    alone = [made.scores(row[None], [(0, 1, 1)])[0] for row in hidden]
    np.testing.assert_allclose(found, alone, atol=1e-6)
    assert "padding" not in caplog.text
