"""Addresses differ by device and by server, and always fit into a socket address."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ConfigError
from ge_backend.executor.process import address as module
from ge_backend.executor.process.address import MAX_SOCKET_PATH_BYTES, ExecutorAddress, name_of


def address(device="cpu", directory=Path("/run/ge"), owner_pid=7):
    return ExecutorAddress(
        device=device, directory=directory, owner_pid=owner_pid, python="", library_path=""
    )


def test_devices_and_servers_have_sockets_of_their_own():
    """Two devices, or two servers that share a folder, never meet at one socket."""
    sockets = {address(d, owner_pid=o).socket for d in ("cpu", "cuda:0", "cuda:1") for o in (1, 2)}
    assert len(sockets) == 6


def test_a_model_may_have_an_executor_for_itself():
    """It meets neither the device's shared one nor another model's."""
    own = name_of(7)
    apart = [
        replace(address("cuda:0"), apart=name).socket.name for name in ("", "vllm-1", "vllm-2")
    ]
    assert apart == [f"cuda-0-{own}.sock", f"cuda-0-vllm-1-{own}.sock", f"cuda-0-vllm-2-{own}.sock"]


@given(st.text(max_size=20))
def test_no_device_name_leaves_the_folder(device):
    """Whatever a configuration calls a device, its socket lies in the folder."""
    assert address(device).socket.parent == Path("/run/ge")


def test_a_relative_folder_is_one_place_for_everybody(monkeypatch, tmp_path):
    """The executor works in another directory, so the address must not depend on it."""
    monkeypatch.chdir(tmp_path)
    assert address(directory=Path("run")).socket == tmp_path / "run" / f"cpu-{name_of(7)}.sock"


def test_a_folder_with_too_long_a_name_is_refused_with_the_setting_to_change():
    """The system's limit is met before the system is asked."""
    with pytest.raises(ConfigError, match="GE_RUNTIME_DIR"):
        _ = address(directory=Path("/tmp") / ("d" * 100)).socket


def test_the_longest_address_can_be_bound(tmp_path):
    """The limit is the system's own: one byte more could not be bound."""
    room = MAX_SOCKET_PATH_BYTES - len(str(tmp_path)) - 1
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener, pytest.raises(OSError, match="too long"):
        listener.bind(str(tmp_path / ("s" * (room + 1))))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener:
        listener.bind(str(tmp_path / ("s" * room)))


def test_a_process_has_another_name_in_another_container(monkeypatch, tmp_path):
    """Containers may share a folder and have processes of the same number."""
    here = name_of(7)
    assert here == name_of(7) != name_of(8)
    (tmp_path / "pid").touch()
    monkeypatch.setattr(module, "PROCESS_NAMESPACE", tmp_path / "pid")
    assert name_of(7).partition("-")[0] == "7"
    assert name_of(7) != here
    monkeypatch.setattr(module, "PROCESS_NAMESPACE", tmp_path / "none")
    assert name_of(7) == "7"
