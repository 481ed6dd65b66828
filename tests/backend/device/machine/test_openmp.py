"""Threads of OpenMP spin for a moment, unless the user has chosen."""

import pytest

from ge_backend.device.machine.openmp import SPINS, spin_briefly


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_what_the_user_has_set_stays(monkeypatch, given, spins):
    """One of the two variables is enough to have chosen."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    environment = dict(given)
    monkeypatch.setattr("os.environ", environment)
    spin_briefly()
    assert environment == given | ({} if spins is None else {"GOMP_SPINCOUNT": spins})
