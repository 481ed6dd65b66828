"""How a batch becomes chunks of whole rows. What the layers compute is in test_encoder."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from builders.checkpoints import as_sentence_encoder, write_checkpoint  # noqa: E402
from ge_backend.engines.torch.encoder import PackedEncoder  # noqa: E402
from ge_backend.engines.torch.masked_layers import (  # noqa: E402
    MaskedLayers,
    RowChunks,
    _attention,
    masks,
)
from ge_backend.engines.torch.packed_rows import pack_rows  # noqa: E402
from ge_backend.errors import GraphFailed  # noqa: E402
from ge_backend.model.files.encoder_folder import read_encoder_folder  # noqa: E402

LENGTHS = 3, 9, 0, 1, 4, 12, 4, 2


@pytest.fixture
def encoder(tmp_path):
    folder = as_sentence_encoder(write_checkpoint(tmp_path))
    return PackedEncoder(read_encoder_folder(folder), torch.float32)


@pytest.fixture
def packed():
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int64)
    ids = np.arange(mask.size).reshape(mask.shape) % 90
    return pack_rows(ids, mask, types=ids % 2)


def test_pieces_are_whole_rows(encoder, packed):
    """As many as fit, shortest first; a longer one by itself; what is behind them is nobody's."""
    found = list(RowChunks(encoder=encoder, most=8, rounded=lambda count: count + 2).of(packed))
    assert [chunk.count for chunk in found] == [1 + 2 + 3, 4 + 4, 9, 12]
    ids, positions, types, rows = (
        np.concatenate([chunk.inputs[index][: chunk.count] for chunk in found])
        for index in range(4)
    )
    count = sum(LENGTHS)
    np.testing.assert_array_equal(ids, packed.ids[:count])
    np.testing.assert_array_equal(positions, packed.positions[:count])
    np.testing.assert_array_equal(types, packed.types[:count])
    np.testing.assert_array_equal(rows, packed.rows)
    for chunk in found:
        assert len(chunk.inputs[0]) == chunk.count + 2
        assert (chunk.inputs[3][chunk.count :] == -1).all()


def test_what_lies_beside_a_row_changes_nothing(encoder, packed):
    """Neither other rows nor what is behind them, however the batch is cut."""
    layers = MaskedLayers(encoder)

    def compute(tokens):
        with torch.inference_mode():
            return layers(*map(torch.from_numpy, tokens.inputs)).numpy()[: tokens.count]

    whole = RowChunks(encoder=encoder, most=100, rounded=int).layers(compute)(packed)
    chunks = RowChunks(encoder=encoder, most=8, rounded=lambda count: count + 5)
    cut = chunks.layers(compute)(packed)
    assert whole.shape == (sum(LENGTHS), encoder.width)
    np.testing.assert_allclose(cut, whole, atol=1e-5)


def test_what_is_in_no_table_is_refused_before_it_is_computed(encoder):
    """Tokens and positions alike."""
    chunks = RowChunks(encoder=encoder, most=8, rounded=int)
    run = chunks.layers(lambda tokens: pytest.fail("computed"))
    with pytest.raises(GraphFailed, match=r"idx=200 must be within .*\[0,199\]"):
        run(pack_rows(np.full((1, 3), 200), np.ones((1, 3), np.int64)))
    with pytest.raises(GraphFailed, match="a row of 40 tokens; the model takes 32"):
        run(pack_rows(np.full((1, 40), 7), np.ones((1, 40), np.int64)))


def test_grouped_heads_are_those_of_as_many():
    """Keys and values may be of fewer heads."""
    rows = torch.tensor([0, 0, 0, 1, 1])
    query, key, value = torch.randn(3, 1, 4, 5, 8, generator=torch.Generator().manual_seed(1))
    module = SimpleNamespace(ge_row_attention=masks(torch.float32)(rows, torch.arange(5)))
    few = (item[:, ::2] for item in (key, value))
    again = (item[:, ::2].repeat_interleave(2, 1) for item in (key, value))
    found, expected = (_attention(module, query, *pair, None)[0] for pair in (few, again))
    torch.testing.assert_close(found, expected)
