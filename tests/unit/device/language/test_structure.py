"""What a text may be held to."""

import pytest

from ge_backend.device.language.structure import Structure, StructureKind
from ge_backend.generate.parameters import parse_parameters


@pytest.mark.parametrize("kind", StructureKind)
def test_every_kind_is_a_parameter_of_its_name(kind):
    """What a kind is called is what a client writes."""
    written = '["a"]' if kind is StructureKind.CHOICE else "a"
    assert parse_parameters({kind.value: written}).structure == Structure(kind, written)
