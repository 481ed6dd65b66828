"""What holds for every file of the package."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "backend" / "ge" / "ge_backend"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py")
IDS = [str(path.relative_to(PACKAGE)) for path in MODULES]
# Tested by what they are for, not by a file of their own.
ELSEWHERE = {
    "assumptions/completion.py": "tests/unit/assumptions/test_served.py",
    "assumptions/findings.py": "tests/unit/assumptions/test_served.py",
    "assumptions/kept.py": "tests/unit/assumptions/test_served.py",
    "assumptions/lengths.py": "tests/unit/assumptions/test_served.py",
    "assumptions/made_up.py": "tests/unit/assumptions/test_comparison.py",
    "assumptions/output_sizes.py": "tests/unit/assumptions/test_served.py",
    "assumptions/padding.py": "tests/unit/assumptions/test_served.py",
    "assumptions/rows.py": "tests/unit/assumptions/test_served.py",
    "assumptions/trial.py": "tests/unit/assumptions/test_served.py",
    "warmup/verdict.py": "tests/unit/assumptions/test_served.py",
    "device/ov/precision.py": "tests/unit/device/ov/language/test_decoder.py",
    "device/pytorch/encoder_layers.py": "tests/unit/device/pytorch/test_encoder.py",
    "device/pytorch/pretrained.py": "tests/unit/device/pytorch/test_encoder.py",
    "cli/model/tested.py": "tests/unit/cli/test_check.py",
    "cli/model/changes.py": "tests/unit/cli/test_preset.py",
    "cli/report/picture.py": "tests/unit/cli/report/test_memory_plot.py",
    "cli/report/tuning.py": "tests/unit/cli/test_tune.py",
    "executor/process/main.py": "tests/process",
    "executor/protocol/messages.py": "tests/unit/executor/protocol/test_wire.py",
    "device/language/open.py": "tests/server/test_generation.py",
    "device/language/scheduled.py": "tests/unit/generate/test_delegate.py",
    "executor/server/text_answer.py": "tests/unit/executor/server/test_generation.py",
    "generate/speculation/base.py": "tests/unit/generate/speculation/test_speculation.py",
    "generate/live.py": "tests/unit/generate/test_engine.py",
    "generate/plan.py": "tests/unit/generate/test_scheduler.py",
    "generate/update.py": "tests/unit/generate/test_engine.py",
    "host/entry.py": "tests/server/test_generation.py",
    "serving/offline.py": "tests/unit/cli/model/test_offline.py",
    "config/settings.py": "tests/unit/config/test_model.py",
}


def public_names(tree):
    """Return what a module lists in `__all__`."""
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    )


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_nothing_is_asserted_away(path):
    """The package raises named errors; `assert` is for tests."""
    tree = ast.parse(path.read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_public_names_are_listed_in_order(path):
    """`__all__` is there, sorted as ruff sorts it, and every name in it exists."""
    tree = ast.parse(path.read_text())
    names = public_names(tree)
    defined = {
        name
        for node in tree.body
        for name in (
            [getattr(node, "name", "")]
            + [
                getattr(t, "id", "")
                for t in getattr(node, "targets", [getattr(node, "target", None)])
            ]
            + [alias.asname or alias.name for alias in getattr(node, "names", [])]
        )
    }
    assert set(names) <= defined
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_a_name_has_one_home(path):
    """No module passes another's names on."""
    tree = ast.parse(path.read_text())
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported.isdisjoint(public_names(tree))


def test_a_name_means_one_thing():
    """No two public classes have the same name."""
    names = [
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name for name in names if names.count(name) > 1} == set()


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_every_module_has_its_tests(path):
    """tests/unit mirrors the package; what is tested elsewhere says where."""
    relative = path.relative_to(PACKAGE)
    mirror = ROOT / "tests" / "unit" / relative.parent / f"test_{relative.name}"
    elsewhere = ELSEWHERE.get(str(relative))
    assert mirror.is_file() or (elsewhere and (ROOT / elsewhere).exists())
    assert not (mirror.is_file() and elsewhere)
