"""The model file of a version folder is found, or its absence is explained."""

import os
from pathlib import Path

import pytest

from ge_backend.device.base import GraphSource
from ge_backend.errors import ModelError
from ge_backend.model.files.model_file import (
    canonical,
    find_model_file,
    model_bytes,
    model_files,
    stamp_of,
)


def field(number, content):
    """Return a length-delimited field of a protocol buffer."""
    return bytes([number << 3 | 2, len(content)]) + content


def with_external_weights(location):
    """Return an ONNX model of one tensor, whose content is in a file of this name."""
    entry = field(1, b"location") + field(2, location.encode())
    return field(7, field(5, field(13, entry)))


# One without any; nothing lies beside it.
WHOLE = field(7, b"")


def test_known_names_in_order(tmp_path):
    """ONNX comes before torch when a folder holds both and nothing is named."""
    (tmp_path / "model.pt2").touch()
    assert find_model_file(tmp_path, "").name == "model.pt2"
    (tmp_path / "model.onnx").touch()
    assert find_model_file(tmp_path, "").name == "model.onnx"


def test_default_model_filename_decides(tmp_path):
    """A name in config.pbtxt is taken, and nothing else."""
    (tmp_path / "model.onnx").touch()
    (tmp_path / "other.onnx").touch()
    assert find_model_file(tmp_path, "other.onnx").name == "other.onnx"
    with pytest.raises(ModelError, match=r"looked for third.onnx, found model.onnx, other.onnx"):
        find_model_file(tmp_path, "third.onnx")


@pytest.mark.parametrize(("folder", "filename"), [("model.onnx", ""), ("encoder", "encoder")])
def test_a_folder_in_the_files_place_holds_the_model(tmp_path, folder, filename):
    """With its weights beside it, as Triton's ONNX Runtime backend takes it; an empty one is none."""
    (tmp_path / folder).mkdir()
    with pytest.raises(ModelError, match=f"looked for .*, found {folder}; "):
        find_model_file(tmp_path, filename)
    model = tmp_path / folder / "model.onnx"
    model.write_bytes(with_external_weights("weights.bin"))
    (tmp_path / folder / "weights.bin").touch()
    assert find_model_file(tmp_path, filename) == model
    assert model_files(model) == (model, model.with_name("weights.bin"))


def test_empty_folder_is_explained(tmp_path):
    """The error lists what was looked for."""
    with pytest.raises(ModelError, match=r"looked for model.onnx.*found nothing"):
        find_model_file(tmp_path, "")


@pytest.mark.parametrize("method", ["is_file", "iterdir"])
def test_a_folder_that_may_not_be_read_is_explained(tmp_path, monkeypatch, method):
    """As another user's; the tests' own user may read any."""

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(ModelError, match=r"no model file in .*, which cannot be read.*denied"):
        find_model_file(tmp_path, "")


def test_an_npu_prefers_what_was_compiled(tmp_path):
    """A model may lie there as ONNX for other devices."""
    for name in ("model.onnx", "model.om"):
        (tmp_path / name).touch()
    assert find_model_file(tmp_path, "", "npu:1").name == "model.om"
    assert find_model_file(tmp_path, "", "cpu").name == "model.onnx"
    assert find_model_file(tmp_path, "model.onnx", "npu:1").name == "model.onnx"


@pytest.mark.parametrize("device", ["npu:0", "cpu"])
def test_a_grid_of_compiled_files_is_found(tmp_path, device):
    """By its smallest file; on a CPU too, which then says that it does not run it."""
    for name in ("model.8x64.om", "model.1x64.om", "model.notes.om"):
        (tmp_path / name).touch()
    assert find_model_file(tmp_path, "", device).name == "model.1x64.om"


def test_the_grid_is_among_what_was_looked_for(tmp_path):
    """The error shows how its files are called."""
    with pytest.raises(ModelError, match=r"model\.om, model\.<rows>x<size>\.om"):
        find_model_file(tmp_path, "", "npu:0")


def test_a_grid_of_links_is_a_grid(tmp_path):
    """Its files may lie elsewhere under other names; other models are known by what they link to."""
    store, folder = tmp_path / "store", tmp_path / "real" / "1"
    store.mkdir()
    folder.mkdir(parents=True)
    for name in ("model.1x8.om", "model.2x8.om", "model.onnx"):
        (store / f"blob-{name}.onnx").write_bytes(WHOLE)
        (folder / name).symlink_to(store / f"blob-{name}.onnx")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    reached = tmp_path / "linked" / "1"
    assert canonical(reached / "model.1x8.om") == folder / "model.1x8.om"
    assert canonical(reached / "model.onnx") == store / "blob-model.onnx.onnx"
    names = [path.name for path in model_files(canonical(reached / "model.1x8.om"))]
    assert names == ["model.1x8.om", "model.2x8.om"]


@pytest.mark.parametrize(
    ("name", "target", "known"),
    [
        ("model.onnx", "0a1b2c", "1/model.onnx"),
        ("tokenizer.json", "9f.json", "1/tokenizer.json"),
        ("model.onnx", "resnet.onnx", "blobs/resnet.onnx"),
        ("tokenizer.json", "bert-tokenizer.json", "blobs/bert-tokenizer.json"),
        ("model.pt", "model.pt2", "1/model.pt"),
    ],
)
def test_a_link_keeps_its_name_where_the_files_own_says_less(tmp_path, name, target, known):
    """Its end tells which engine runs it; caches of downloads call files by their hash."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "blobs" / target).write_bytes(WHOLE)
    (tmp_path / "1" / name).symlink_to(f"../blobs/{target}")
    assert canonical(tmp_path / "1" / name) == tmp_path / known


@pytest.mark.parametrize(
    ("beside_link", "beside_target", "known"),
    [
        ("weights.bin", "", "1"),  # a file of its own
        ("", "weights.bin", "1"),  # missing, and said so
        ("copy", "weights.bin", "1"),  # the release's, where the store has another
        ("link", "weights.bin", "store"),  # one and the same
    ],
)
def test_what_lies_beside_a_link_belongs_to_the_model(tmp_path, beside_link, beside_target, known):
    """As for ONNX Runtime; the link is followed where the target has the very same files."""
    store, folder = tmp_path / "store", tmp_path / "1"
    store.mkdir()
    folder.mkdir()
    (store / "model.onnx").write_bytes(with_external_weights("weights.bin"))
    (folder / "model.onnx").symlink_to(store / "model.onnx")
    if beside_target:
        (store / "weights.bin").write_bytes(b"old")
    if beside_link == "link":
        (folder / "weights.bin").symlink_to(store / "weights.bin")
    elif beside_link:
        (folder / "weights.bin").write_bytes(b"new")
    assert canonical(folder / "model.onnx") == tmp_path / known / "model.onnx"
    if beside_link:
        files = GraphSource.of(folder / "model.onnx").files()
        assert files[1].read_bytes() == (b"old" if beside_link == "link" else b"new")
    else:
        told = r"'weights\.bin', which is not beside it; model\.onnx is a link: link weights\.bin"
        with pytest.raises(ModelError, match=told):
            GraphSource.of(folder / "model.onnx")


@pytest.mark.parametrize("end", ["bin", "cfg"])
def test_a_pair_behind_links_is_that_of_the_links(tmp_path, end):
    """An IR's weights, and a file that an option names: never those beside what is linked to."""
    name, options = "model.xml", [("atc.insert_op_conf", "model.cfg")] if end == "cfg" else []
    for folder, content in (("old", b"1"), ("new", b"2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(b"<net/>")
        (tmp_path / folder / f"model.{end}").write_bytes(content)
    served = tmp_path / "1"
    served.mkdir()
    (served / name).symlink_to(tmp_path / "old" / name)
    (served / f"model.{end}").symlink_to(tmp_path / "new" / f"model.{end}")
    _, beside = model_files(canonical(served / name, options), options)
    assert beside.read_bytes() == b"2"


@pytest.mark.parametrize("filename", ["", "model.onnx"])
@pytest.mark.parametrize("device", ["cpu", "npu:0"])
def test_a_link_to_nothing_is_named(tmp_path, filename, device):
    """With what it leads to: a listing of the folder shows a model there."""
    (tmp_path / "model.onnx").symlink_to("/nowhere/weights.onnx")
    told = r"found model\.onnx \(a link to /nowhere/weights\.onnx, which is not there\)"
    with pytest.raises(ModelError, match=told):
        find_model_file(tmp_path, filename, device)


def test_a_link_to_nothing_beside_the_only_model(tmp_path):
    """It is no second one."""
    (tmp_path / "old.onnx").symlink_to("/nowhere/weights.onnx")
    (tmp_path / "new.onnx").touch()
    assert find_model_file(tmp_path, "").name == "new.onnx"


def test_files_of_a_model(tmp_path):
    """All that a changed stamp must come from."""
    for name in ("model.1x8.om", "model.2x8.om", "model.om.json", "model.om"):
        (tmp_path / name).touch()
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08")  # `ir_version` alone
    names = ["model.1x8.om", "model.2x8.om", "model.om.json"]
    assert [path.name for path in model_files(tmp_path / "model.2x8.om")] == names
    alone = [path.name for path in model_files(tmp_path / "model.om")]
    assert alone == ["model.om", "model.om.json"]
    assert model_files(tmp_path / "model.onnx") == (tmp_path / "model.onnx",)


def test_weights_beside_an_onnx_file_are_the_models(tmp_path):
    """A training run that writes only these anew makes another model of it."""
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    path.write_bytes(with_external_weights(weights.name))
    weights.write_bytes(b"\0" * 16)
    assert model_files(path) == (path, weights)
    before = GraphSource.of(path)
    assert GraphSource.of(path) == before
    os.utime(weights, (1, 1))
    assert GraphSource.of(path) != before


@pytest.mark.parametrize("key", ["npu.aipp", "atc.insert_op_conf", "session.ge.insertOpFile"])
def test_a_file_that_an_option_names_is_the_models(tmp_path, key):
    """If it lies in the folder of the model: changed, it makes another model of it."""
    (tmp_path / "1" / "more").mkdir(parents=True)
    path = tmp_path / "1" / "model.null"
    for name in ("1/model.null", "1/more/aipp.cfg", "aipp.cfg"):
        (tmp_path / name).write_text("{}")
    values = ("../aipp.cfg", str(tmp_path / "aipp.cfg"), "x" * 999, "", "no", "more", path.name)
    others = tuple((f"atc.o{number}", value) for number, value in enumerate(values))
    options = (*others, (key, "more/aipp.cfg"), ("torch.mode", "../aipp.cfg"))
    assert model_files(path, options) == (path, path.parent / "more" / "aipp.cfg")
    before = GraphSource.of(path, options=options)
    assert before.files() == model_files(path, options)
    (path.parent / "more" / "aipp.cfg").write_text("other")
    assert not before.is_current()
    assert GraphSource.of(path, options=options) != before


def test_weights_that_are_not_there_are_named(tmp_path):
    """Before any engine looks for them, whose message nobody understands."""
    (tmp_path / "model.onnx").write_bytes(with_external_weights("weights.bin"))
    with pytest.raises(ModelError, match=r"weights are in 'weights\.bin'"):
        model_files(tmp_path / "model.onnx")


def test_a_stamp_changes_with_any_of_the_files(tmp_path):
    """By size or time, when one more comes, and when another file takes its place as it was."""
    first, second, third = (tmp_path / name for name in "abc")
    first.write_text("1")
    second.write_text("1")
    stamps = [stamp_of([first]), stamp_of([first, second])]
    second.write_text("22")
    stamps.append(stamp_of([first, second]))
    os.utime(first, (1, 1))
    stamps.append(stamp_of([first, second]))
    third.write_text("3")
    os.utime(third, (1, 1))
    third.rename(first)
    stamps.append(stamp_of([first, second]))
    assert len(set(stamps)) == 5
    (tmp_path / "link").hardlink_to(first)
    assert stamp_of([first, second]) == stamps[-1]


def test_the_only_model_of_another_name_is_found(tmp_path):
    """As it was downloaded; with two of them, or where one is named, nothing is guessed."""
    (tmp_path / "resnet18-v1-7.onnx").touch()
    (tmp_path / "labels.txt").touch()
    assert find_model_file(tmp_path, "").name == "resnet18-v1-7.onnx"
    with pytest.raises(ModelError, match=r"looked for model.onnx, found"):
        find_model_file(tmp_path, "model.onnx")
    (tmp_path / "older.onnx").touch()
    with pytest.raises(ModelError, match="name it with default_model_filename"):
        find_model_file(tmp_path, "")


@pytest.mark.parametrize(
    ("served", "beside"),
    [
        ("encoder.onnx", ["tokenizer.json"]),
        ("encoder.pt2", ["tokenizer.json", "image.json"]),
        ("encoder.onnx", ["config.json", "tokenizer.json"]),
        ("encoder.onnx", ["config.json", "pytorch_model.bin", "model.py"]),
        ("model.onnx", ["config.json", "tokenizer.json", "model.safetensors"]),
        ("config.json", ["tokenizer.json", "model.safetensors", "encoder.onnx", "modules.json"]),
        ("config.json", ["tokenizer.json", "optimizer.pt", "scheduler.pt"]),
        ("tokenizer.json", ["tokenizer_config.json", "model.py"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_a_graph_is_the_model_of_a_folder_that_was_downloaded(tmp_path, served, beside):
    """Where no weights say that the checkpoint is meant; graphs in folders below are not."""
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").touch()
    for name in (served, *beside):
        (tmp_path / name).touch()
    assert find_model_file(tmp_path, "").name == served
    assert find_model_file(tmp_path, beside[0]).name == beside[0]


def test_a_file_of_llama_cpp_is_refused_with_what_to_take(tmp_path):
    """Its weights are those of a checkpoint, under other names and in another order."""
    (tmp_path / "chat-Q8_0.gguf").touch()
    taken = r"chat-Q8_0\.gguf \(GGUF is not read: take the checkpoint that it was made of\)"
    with pytest.raises(ModelError, match=taken):
        find_model_file(tmp_path, "")


PICKLED = b"\x80\x02"  # as torch.save began its files before they were archives


@pytest.mark.parametrize(
    ("served", "beside"),
    [("config.json", "scheduler.pt"), ("tokenizer.json", "scheduler.pt"), ("net.pt", "best.pt")],
)
@pytest.mark.parametrize("device", ["cpu", "npu:0"])
def test_what_torch_has_pickled_is_no_graph(tmp_path, served, beside, device):
    """As a trainer leaves it beside a checkpoint; so the error is of the weights that lack."""
    (tmp_path / served).touch()
    (tmp_path / beside).write_bytes(PICKLED)
    assert find_model_file(tmp_path, "", device).name == served
    assert find_model_file(tmp_path, beside, device).name == beside


def test_weights_alone_are_no_model(tmp_path):
    """The error says what they are."""
    (tmp_path / "best.pt").write_bytes(PICKLED)
    with pytest.raises(ModelError, match=r"found best\.pt \(pickled by torch\.save, no program\)"):
        find_model_file(tmp_path, "")


def test_the_bytes_of_a_model_are_those_of_all_its_files(tmp_path):
    """The weights of an OpenVINO file lie beside it."""
    (tmp_path / "model.xml").write_bytes(b"x" * 10)
    (tmp_path / "model.bin").write_bytes(b"x" * 1000)
    assert model_bytes(tmp_path / "model.xml") == 1010
    with pytest.raises(FileNotFoundError):
        model_bytes(tmp_path / "other.xml")
