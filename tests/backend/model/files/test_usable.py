"""Files that are not what their names say are refused by name, with the next step."""

import zipfile

import pytest

from ge_backend.errors import ModelError
from ge_backend.model.files.usable import check_usable


def archive(path, *names):
    with zipfile.ZipFile(path, "w") as packed:
        for name in names:
            packed.writestr(f"model/{name}", b"")


def test_a_cut_file_of_weights_is_refused(tmp_path):
    """Its header says more than there is."""
    file = tmp_path / "model.safetensors"
    file.write_bytes((10_000).to_bytes(8, "little") + b'{"a":')
    with pytest.raises(ModelError, match=r"model\.safetensors: its header .*copy it again"):
        check_usable([file])


@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
@pytest.mark.parametrize(
    ("entries", "told"),
    [
        (("data.pkl", "version"), "such as a state dict.*torch.export.save.*torch.jit.save"),
        (("data/aotinductor/model/a.so",), "package of AOTInductor.*torch.export.save, before"),
    ],
    ids=["state dict", "compiled"],
)
def test_what_is_no_program_is_told_from_one(tmp_path, name, entries, told):
    """By the names of the entries."""
    archive(tmp_path / name, *entries)
    with pytest.raises(ModelError, match=rf"{name} .*{told}"):
        check_usable([tmp_path / name])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no end"])
def test_a_cut_program_is_refused(tmp_path, content):
    """Its list of entries was at the end."""
    (tmp_path / "model.pt2").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.pt2 is no archive.*copy it again"):
        check_usable([tmp_path / "model.pt2"])


def test_programs_and_others_pass(tmp_path):
    """What is in them is the engine's to read."""
    archive(tmp_path / "model.pt2", "models/model.json")
    archive(tmp_path / "model.pt", "data.pkl", "constants.pkl")
    (tmp_path / "model.onnx").write_bytes(b"whatever")
    check_usable(tmp_path.iterdir())
