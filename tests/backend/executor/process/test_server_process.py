"""Processes have names of their own."""

from ge_backend.executor.process import server_process
from ge_backend.executor.process.server_process import name_of


def test_a_process_has_another_name_in_another_container(monkeypatch, tmp_path):
    """Containers may share a folder and have processes of the same number."""
    here = name_of(7)
    assert here == name_of(7) != name_of(8)
    (tmp_path / "pid").touch()
    monkeypatch.setattr(server_process, "PROCESS_NAMESPACE", tmp_path / "pid")
    assert name_of(7).partition("-")[0] == "7"
    assert name_of(7) != here
    monkeypatch.setattr(server_process, "PROCESS_NAMESPACE", tmp_path / "none")
    assert name_of(7) == "7"
