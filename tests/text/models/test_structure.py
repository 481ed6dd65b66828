"""What a text may be held to."""

import pytest

from ge_text.engine.parameters import parse_parameters
from ge_text.models.structure import Structure, StructureKind


@pytest.mark.parametrize("kind", StructureKind)
def test_every_kind_is_a_parameter_of_its_name(kind):
    """What a kind is called is what a client writes."""
    written = '["a"]' if kind is StructureKind.CHOICE else "a"
    assert parse_parameters({kind.value: written}).structure == Structure(kind, written)
