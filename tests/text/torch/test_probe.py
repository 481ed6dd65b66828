"""What the layers ask of attention is found out by one run; anything unknown is refused."""

import pytest
import torch
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from builders.language import make
from ge_backend.errors import Unsupported
from ge_text.torch.attention import Attend
from ge_text.torch.cache import KeyValueShape
from ge_text.torch.decoder import TransformersDecoder
from ge_text.torch.probe import Probe, probe_attention, probe_mask

QUERY, KEY, VALUE = (torch.Size((1, heads, 5, dim)) for heads, dim in ((4, 9), (2, 9), (2, 6)))


def mask(function, **asked):
    return probe_mask(q_length=5, kv_length=5, mask_function=function, **asked)


def noted(given, **options):
    probe = Probe()
    probe.note(torch.nn.Identity(), (QUERY, KEY, VALUE), given, options)
    return probe.layers[0]


def test_a_layer_is_what_it_hands_over():
    """Its scale, its soft cap, its window and the sizes of its keys and values."""
    given = mask(sliding_window_causal_mask_function(4096), local_size=4096)
    layer = noted(given, scaling=0.25, softcap=50.0, sliding_window=4096, dropout=0.0)
    assert layer.attend == Attend(scale=0.25, window=4096, softcap=50.0)
    assert layer.shape == KeyValueShape(heads=2, key_dim=9, value_dim=6)


def test_what_is_not_said_is_the_usual():
    """All tokens before, no cap, scaled by the square root of a head's size."""
    layer = noted(mask(causal_mask_function), scaling=None, softcap=None, sliding_window=None)
    assert layer.attend == Attend(scale=pytest.approx(1 / 3), window=0, softcap=0.0)


def test_a_window_that_only_the_mask_shows_counts():
    """As in transformers' eager attention, to which a layer need not say it again."""
    given = mask(sliding_window_causal_mask_function(8), local_size=8)
    assert noted(given).attend.window == 8
    with pytest.raises(Unsupported, match="another window than its mask, which shows 8"):
        noted(given, sliding_window=None)


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        (None, {}, "no mask that transformers' mask interface made"),
        (torch.zeros(1, 1, 5, 5), {}, "no mask that transformers' mask interface made"),
        (mask(bidirectional_mask_function), {}, "neither causal nor"),
        (
            mask(chunked_causal_mask_function(8, torch.zeros(1, dtype=int)), local_size=8),
            {"sliding_window": 8},
            "neither causal nor a causal window of 8",
        ),
        (
            mask(sliding_window_causal_mask_function(8), local_size=9),
            {"sliding_window": 9},
            "neither causal nor a causal window of 9",
        ),
        (mask(sliding_window_causal_mask_function(8)), {}, "neither causal nor"),
        (mask(causal_mask_function), {"sliding_window": 8}, "another window than its mask"),
        (mask(causal_mask_function), {"s_aux": torch.zeros(4)}, "asks attention for s_aux"),
        (mask(causal_mask_function), {"bias": 1, "alibi": 2}, "asks attention for alibi, bias"),
    ],
)
def test_what_paged_attention_cannot_do_is_refused(given, options, reason):
    """A model that asks for it would otherwise be wrong without a word."""
    with pytest.raises(Unsupported, match=reason):
        noted(given, **options)


def test_a_module_that_attends_twice_is_refused():
    """Its keys would need two places in the cache."""
    probe, module = Probe(), torch.nn.Identity()
    probe.note(module, (QUERY, KEY, VALUE), mask(causal_mask_function), {})
    with pytest.raises(Unsupported, match=r"layer 1 .* attends twice"):
        probe.note(module, (QUERY, KEY, VALUE), mask(causal_mask_function), {})


def test_nothing_stays_at_the_model():
    """The probe is gone when the run is over, however it ended."""
    model, probe = torch.nn.Sequential(torch.nn.Identity()), Probe()

    def broken():
        with probe.attached(model):
            probe_attention(model[0], *map(torch.ones, (QUERY, KEY, VALUE)), None)

    with probe.attached(model):
        found, _ = probe_attention(
            model[0], *map(torch.ones, (QUERY, KEY, VALUE)), mask(causal_mask_function)
        )
    assert found.shape == (1, 5, 4, 6)
    assert not hasattr(model[0], "ge_probe")
    with pytest.raises(Unsupported):
        broken()
    assert not hasattr(model[0], "ge_probe")
    assert len(probe.layers) == 1


def test_alternating_windows_are_found_layer_by_layer(tmp_path):
    """Gemma's layers differ; so do their masks."""
    from ge_backend.model.files.checkpoint import read_checkpoint

    make(tmp_path, "gemma2")
    checkpoint = read_checkpoint(tmp_path)
    decoder = TransformersDecoder(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
    layers = [module.ge_layer for module in decoder._model.modules() if hasattr(module, "ge_layer")]
    assert [layer.attend.window for layer in layers] == [6, 0]
    assert {layer.attend.softcap for layer in layers} == {5.0}
