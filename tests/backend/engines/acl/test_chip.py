"""Which chip this machine has."""

import sys

import pytest

from acl_simulator import Simulator
from ge_backend.engines.acl.runtime import chip_name
from ge_backend.errors import DeviceUnavailable


@pytest.mark.parametrize("owned_elsewhere", [False, True])
def test_it_is_what_acl_says(monkeypatch, owned_elsewhere):
    """ACL is left as it was: ended if we began it, else not."""
    acl = Simulator(soc="Ascend310P3", owned_elsewhere=owned_elsewhere)
    monkeypatch.setitem(sys.modules, "acl", acl)
    assert chip_name() == "Ascend310P3"
    assert acl.calls["finalize"] == (0 if owned_elsewhere else 1)


def test_without_acl(monkeypatch):
    """The message says what to give instead."""
    monkeypatch.setitem(sys.modules, "acl", None)
    with pytest.raises(DeviceUnavailable, match=r"not known here \(.*acl.*give --soc-version"):
        chip_name()


def test_how_to_find_the_name(monkeypatch):
    """It is shown in two ways, by the generation of the chip."""
    monkeypatch.setitem(sys.modules, "acl", None)
    with pytest.raises(DeviceUnavailable) as caught:
        chip_name()
    text = str(caught.value)
    assert "'npu-smi info' with 'Ascend' before it (Ascend910B3, Ascend310P3)" in text
    assert "'npu-smi info -t board -i <id> -c <chip>'" in text
    assert "Ascend910_9382" in text


def test_without_a_chip(monkeypatch):
    """ACL has no name for it."""
    acl = Simulator()
    monkeypatch.setattr(acl, "get_soc_name", lambda: None)
    monkeypatch.setitem(sys.modules, "acl", acl)
    with pytest.raises(DeviceUnavailable, match="ACL sees no chip"):
        chip_name()
