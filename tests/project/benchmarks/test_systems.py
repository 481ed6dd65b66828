"""The model repository of the systems under test."""

from pathlib import Path

import pytest
from benchmarks.systems import (
    ALL_OURS,
    CHECKPOINT,
    CPP_ONNX,
    OURS,
    OURS_BOUNDED,
    OURS_INLINE,
    OURS_OPENVINO,
    OURS_PACKED,
    RIVALS,
    absent,
    systems,
    write_repository,
)

from ge_tools.tritonserver.installation import find_server

UNASKED = [name for name in ALL_OURS if name != OURS_BOUNDED]


def written(tmp_path, engine):
    files = {}
    for name in ("model.onnx", "model.pt2"):
        files[name] = tmp_path / name
        files[name].touch()
    files[CHECKPOINT] = tmp_path / CHECKPOINT
    files[CHECKPOINT].mkdir()
    root = tmp_path / "models"
    write_repository(root, systems(2, cores=4, without=(CPP_ONNX,)), engine, files)
    return root


def test_each_rival_has_both_layouts():
    """A rival is served with all threads in one instance, and with one thread in each of many."""
    found = [(s.name, s.instances, s.threads) for s in systems(2, cores=4)]
    rivals = [(name, *layout) for name in (*RIVALS, CPP_ONNX) for layout in ((1, 4), (4, 1))]
    ours = [(name, 1 if name == OURS_INLINE else 2, 0) for name in UNASKED]
    assert found == [*ours, *rivals]


def test_one_core_has_one_layout():
    """On a machine with one core the two layouts are the same and run once."""
    rivals = [f"{name}_1x1" for name in (*RIVALS, CPP_ONNX)]
    assert [s.model for s in systems(1, cores=1)] == [*UNASKED, *rivals]


def test_what_cannot_be_served_here_is_left_out_with_a_reason():
    """Another server's backend and another engine are named, with the way to get them."""
    pytest.importorskip("pytriton")
    missing = absent(find_server())
    assert set(missing) <= {CPP_ONNX, OURS_OPENVINO}
    assert all(" has no " in text or "pip install" in text for text in missing.values())
    assert not {system.name for system in systems(1, without=missing)} & set(missing)


def test_every_system_has_the_engines_model_file(tmp_path):
    """All get the same model file, those without padding its checkpoint; rivals also their code."""
    root = written(tmp_path, "torch-bf16")
    for model in root.iterdir():
        version = model / "1"
        if model.name in {OURS_PACKED, OURS_INLINE}:
            assert version.resolve() == (tmp_path / CHECKPOINT).resolve()
            continue
        others = {OURS_OPENVINO: "model.onnx", "packed": CHECKPOINT}
        file = others.get(model.name.partition("_1x4")[0].partition("_4x1")[0], "model.pt2")
        assert (version / file).resolve() == (tmp_path / file).resolve()
        code = {path.name for path in version.glob("*.py")}
        assert code == (set() if model.name in ALL_OURS else {"model.py", "forward.py"})


def test_batching_and_precision_are_configured(tmp_path):
    """Batches are formed for ours and for pad_longest; bf16 is asked for by the engine's name."""
    root = written(tmp_path, "torch-bf16")
    texts = {path.parent.name: path.read_text() for path in root.glob("*/config.pbtxt")}
    batched = {name for name, text in texts.items() if "dynamic_batching" in text}
    layouts = {f"{name}_{layout}" for name in RIVALS[1:] for layout in ("1x4", "4x1")}
    assert batched == {*UNASKED, *layouts}
    assert all('"bf16"' in texts[name] for name in UNASKED)
    assert '"openvino"' in texts[OURS_OPENVINO]
    assert '"openvino"' not in texts[OURS]
    assert [name for name, text in texts.items() if '"inline"' in text] == [OURS_INLINE]
    assert '"torch-bf16"' in texts["one_forward_4x1"]
    assert all("allow_ragged_batch: true" in text for text in texts.values())


def test_the_one_with_a_preferred_size_is_there_if_asked_for(tmp_path):
    """It differs from `ge_packed` by that alone, and nothing else has one."""
    served = systems(2, cores=4, without=(CPP_ONNX,), preferred=8)
    files = {name: tmp_path / name for name in ("model.onnx", CHECKPOINT)}
    write_repository(tmp_path / "models", served, "onnx", files)
    texts = {p.parent.name: p.read_text() for p in tmp_path.glob("models/*/config.pbtxt")}
    assert [name for name, text in texts.items() if "preferred_batch_size" in text] == [
        OURS_BOUNDED
    ]
    bounded = texts[OURS_BOUNDED].replace("preferred_batch_size: [ 8 ]", "")
    assert bounded == texts[OURS_PACKED]
    folder = tmp_path / "models" / OURS_BOUNDED / "1"
    assert folder.readlink() == (tmp_path / CHECKPOINT).resolve()


def test_on_another_device_all_run_there(tmp_path):
    """What runs on the CPU alone is left out; rivals have as many instances as we."""
    missing = absent(None, "cuda:0")
    served = systems(2, without=missing, device="cuda:0")
    assert [(s.name, s.instances) for s in served] == [(n, 2) for n in (OURS, OURS_PACKED, *RIVALS)]
    files = {name: tmp_path / name for name in ("model.pt2", CHECKPOINT)}
    write_repository(tmp_path / "m", served, "torch-bf16", files, width=768, device="cuda:0")
    for path in (tmp_path / "m").glob("*/config.pbtxt"):
        text = path.read_text()
        assert 'key: "device" value { string_value: "cuda:0" }' in text
        assert "dims: [ 768 ]" in text


def test_rivals_are_plain_files():
    """What the rivals run does not import the backend."""
    for path in (Path(__file__).parents[3] / "benchmarks" / "rivals").glob("*.py"):
        assert "ge_backend" not in path.read_text()
