"""What reads and compiles structures, for tests that hold the API to it; skipped without it."""

import pytest

_errors = pytest.importorskip("ge_backend.errors")
_parameters = pytest.importorskip("ge_text.engine.parameters")
_guide = pytest.importorskip("ge_text.models.guide")
_structure = pytest.importorskip("ge_text.models.structure")

InvalidRequest = _errors.InvalidRequest
Structure = _structure.Structure
StructureKind = _structure.StructureKind
open_guides = _guide.open_guides
parse_parameters = _parameters.parse_parameters
