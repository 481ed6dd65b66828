"""An archive that would fill memory is refused before it is unpacked."""

import zipfile

import pytest

from ge_backend.errors import ModelError, OutOfMemory
from ge_backend.model.files import archive
from ge_backend.model.files.archive import ALWAYS_BYTES, check_archive, is_pickled

PLENTY = 1 << 40


def write(path, *sizes, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as packed:
        for number, size in enumerate(sizes):
            packed.writestr(f"data/{number}", bytes(size))
    return path


def test_an_archive_that_unpacks_to_many_times_its_size_is_refused(tmp_path):
    """Zeros shrink to a thousandth: sixty-five megabytes come in some kilobytes."""
    bomb = write(tmp_path / "model.pt2", ALWAYS_BYTES, 1 << 20)
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(ModelError, match="unpacks to 65 MiB, more than 10 times"):
        check_archive(bomb, PLENTY)


def test_a_small_archive_may_shrink_as_it_likes(tmp_path):
    """Code does, and does no harm."""
    check_archive(write(tmp_path / "model.pt2", 1 << 20), PLENTY)


def test_stored_weights_of_any_size_are_what_torch_writes(tmp_path, monkeypatch):
    """As long as the machine has the memory."""
    path = write(tmp_path / "model.pt2", 2 << 20, method=zipfile.ZIP_STORED)
    monkeypatch.setattr(archive, "ALWAYS_BYTES", 0)
    check_archive(path, PLENTY)
    with pytest.raises(OutOfMemory, match="unpacks to 2 MiB, and the machine has 1 MiB"):
        check_archive(path, 1 << 20)


def test_what_is_no_archive_is_left_to_the_engine(tmp_path):
    """It has words of its own for that."""
    (tmp_path / "model.pt").write_bytes(b"garbage")
    check_archive(tmp_path / "model.pt", PLENTY)


@pytest.mark.parametrize("as_archive", [True, False])
def test_what_torch_save_writes_is_no_program(tmp_path, as_archive):
    """Weights, or what a trainer keeps; the older of its formats is no archive."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "scheduler.pt"
    torch.save({"last_epoch": 3}, path, _use_new_zipfile_serialization=as_archive)
    assert is_pickled(path)


def test_a_program_of_torch_is_not_pickled(tmp_path):
    """Nor is what nobody knows, or is not there."""
    torch = pytest.importorskip("torch")
    torch.jit.trace(torch.nn.Identity(), torch.ones(1)).save(tmp_path / "model.pt")
    (tmp_path / "garbage.pt").write_bytes(b"garbage")
    write(tmp_path / "other.pt", 8)
    (tmp_path / "empty.pt").touch()
    assert [p.name for p in tmp_path.iterdir() if is_pickled(p)] == []
    assert not is_pickled(tmp_path / "missing.pt")
