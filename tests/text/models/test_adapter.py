"""Adapters as values."""

from builders.adapters import stored_adapter
from ge_text.models.adapter import LayerChange, Product


def change(rank):
    return LayerChange(down="a", up="b", rank=rank, scaling=1.0)


def test_a_product_is_changed_as_one():
    """Ranks of its layers add up, and each rank spans all inputs and outputs; others do not count."""
    product = Product(inputs=10, layers={"q": 8, "k": 4})
    assert product.elements({}) == 0
    assert product.elements({"q": change(3), "other": change(99)}) == 3 * (10 + 12)
    assert product.elements({"q": change(3), "k": change(2)}) == 5 * (10 + 12)


def test_an_adapter_is_another_one_once_its_files_have_changed():
    """So what was computed under the old one is not taken for the new one's."""
    assert stored_adapter(stamp="1").key == stored_adapter(stamp="1").key
    assert stored_adapter(stamp="1").key != stored_adapter(stamp="2").key
    assert stored_adapter("poet").key != stored_adapter("pirate").key
