"""The model repository of the systems under test."""

from pathlib import Path

from benchmarks.systems import CHECKPOINT, OURS, OURS_PACKED, RIVALS, systems, write_repository


def written(tmp_path, engine):
    files = {}
    for name in ("model.onnx", "model.pt2"):
        files[name] = tmp_path / name
        files[name].touch()
    files[CHECKPOINT] = tmp_path / CHECKPOINT
    files[CHECKPOINT].mkdir()
    root = tmp_path / "models"
    write_repository(root, systems(2, cores=4), engine, files)
    return root


def test_each_rival_has_both_layouts():
    """A rival is served with all threads in one instance, and with one thread in each of many."""
    found = [(s.name, s.instances, s.threads) for s in systems(2, cores=4)]
    rivals = [(name, *layout) for name in RIVALS for layout in ((1, 4), (4, 1))]
    assert found == [(OURS, 2, 0), (OURS_PACKED, 2, 0), *rivals]


def test_one_core_has_one_layout():
    """On a machine with one core the two layouts are the same and run once."""
    rivals = [f"{name}_1x1" for name in RIVALS]
    assert [s.model for s in systems(1, cores=1)] == [OURS, OURS_PACKED, *rivals]


def test_every_system_has_the_engines_model_file(tmp_path):
    """All get the same model file, those without padding its checkpoint; rivals also their code."""
    root = written(tmp_path, "torch-bf16")
    for model in root.iterdir():
        version = model / "1"
        if model.name == OURS_PACKED:
            assert version.resolve() == (tmp_path / CHECKPOINT).resolve()
            continue
        file = CHECKPOINT if model.name.startswith("packed") else "model.pt2"
        assert (version / file).resolve() == (tmp_path / file).resolve()
        code = {path.name for path in version.glob("*.py")}
        assert code == (set() if model.name == OURS else {"model.py", "forward.py"})


def test_batching_and_precision_are_configured(tmp_path):
    """Batches are formed for ours and for pad_longest; bf16 is asked for by the engine's name."""
    root = written(tmp_path, "torch-bf16")
    texts = {path.parent.name: path.read_text() for path in root.glob("*/config.pbtxt")}
    batched = {name for name, text in texts.items() if "dynamic_batching" in text}
    layouts = {f"{name}_{layout}" for name in RIVALS[1:] for layout in ("1x4", "4x1")}
    assert batched == {OURS, OURS_PACKED, *layouts}
    assert all('"bf16"' in texts[name] for name in (OURS, OURS_PACKED))
    assert '"torch-bf16"' in texts["one_forward_4x1"]
    assert all("allow_ragged_batch: true" in text for text in texts.values())


def test_rivals_are_plain_files():
    """What the rivals run does not import the backend."""
    for path in (Path(__file__).parents[3] / "benchmarks" / "rivals").glob("*.py"):
        assert "ge_backend" not in path.read_text()
