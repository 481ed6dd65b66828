"""The cache holds keys and values where it was told, layer by layer."""

import torch

from ge_text.torch.cache import KeyValueShape, PagedCache

SHAPES = (
    KeyValueShape(heads=2, key_dim=3, value_dim=3),
    KeyValueShape(heads=1, key_dim=4, value_dim=2),
)


def cache():
    return PagedCache(
        SHAPES, block_size=2, num_blocks=4, dtype=torch.float32, device=torch.device("cpu")
    )


def test_a_new_cache_holds_zeros():
    """What no token has written is multiplied by zero, which only numbers survive."""
    empty = cache()
    assert [tuple(keys.shape) for keys in empty.keys] == [(4, 2, 2, 3), (4, 1, 2, 4)]
    assert [tuple(values.shape) for values in empty.values] == [(4, 2, 2, 3), (4, 1, 2, 2)]
    assert not any(tensor.any() for tensor in (*empty.keys, *empty.values))


def test_layers_of_several_shapes_lie_side_by_side():
    """Each has its own heads and sizes; one's tokens do not touch another's."""
    held = cache()
    key, value = torch.full((1, 1, 4), 5.0), torch.full((1, 1, 2), 6.0)
    held.write(1, torch.tensor([5]), key, value)
    assert held.keys[1][2, 0, 1].tolist() == [5.0] * 4
    assert held.values[1][2, 0, 1].tolist() == [6.0] * 2
    assert held.keys[1].sum() == 20
    assert not held.keys[0].any()


def test_saved_blocks_do_not_change_with_the_cache():
    """Their places are given to others at once."""
    held = cache()
    held.keys[0][1] = 1.0
    held.values[1][3] = 2.0
    saved = held.save([1, 3])
    assert saved.nbytes == 2 * 2 * 4 * sum(shape.elements for shape in SHAPES)
    for tensor in (*held.keys, *held.values):
        tensor.fill_(9.0)
    held.restore(saved, [0, 2])
    assert held.keys[0].amax((1, 2, 3)).tolist() == [1.0, 9.0, 0.0, 9.0]
    assert held.values[1].amax((1, 2, 3)).tolist() == [0.0, 9.0, 2.0, 9.0]
