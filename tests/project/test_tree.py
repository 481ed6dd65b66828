"""What holds for every file of the four roots."""

import ast

import pytest

from builders.roots import ROOT, ROOTS, TESTS, root_of, shown, sources

MODULES = [path for path in sources() if path.name != "__init__.py"]
IDS = [shown(path) for path in MODULES]
# Tested by what they are for, not by a file of their own.
ELSEWHERE = {
    "serving/assumptions/completion.py": "tests/backend/serving/assumptions/test_served.py",
    "serving/assumptions/findings.py": "tests/backend/serving/assumptions/test_served.py",
    "serving/assumptions/lengths.py": "tests/backend/serving/assumptions/test_served.py",
    "serving/assumptions/made_up.py": "tests/backend/serving/assumptions/test_comparison.py",
    "serving/assumptions/padding.py": "tests/backend/serving/assumptions/test_served.py",
    "serving/assumptions/rows.py": "tests/backend/serving/assumptions/test_served.py",
    "serving/assumptions/trial.py": "tests/backend/serving/assumptions/test_served.py",
    "serving/warmup/verdict.py": "tests/backend/serving/assumptions/test_served.py",
    "engines/ov/precision.py": "tests/text/openvino/test_decoder.py",
    "engines/torch/encoder_layers.py": "tests/backend/engines/torch/test_encoder.py",
    "engines/torch/pretrained.py": "tests/backend/engines/torch/test_encoder.py",
    "ge_tools/model/tested.py": "tests/tools/test_check.py",
    "ge_tools/model/changes.py": "tests/tools/test_preset.py",
    "ge_tools/report/tuning.py": "tests/tools/test_tune.py",
    "executor/process/main.py": "tests/process",
    "executor/protocol/messages.py": "tests/backend/executor/protocol/test_wire.py",
    "ge_text/models/open.py": "tests/server/test_generation.py",
    "ge_text/models/scheduled.py": "tests/text/engine/test_delegate.py",
    "ge_text/engine/speculation/base.py": "tests/text/engine/speculation/test_speculation.py",
    "ge_text/engine/update.py": "tests/text/engine/test_engine.py",
    "host/entry.py": "tests/server/test_generation.py",
    "model/config/settings.py": "tests/backend/model/config/test_model.py",
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
    """No two public classes of a root have the same name."""
    names = [
        (root_of(path), node.name)
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name for name in names if names.count(name) > 1} == set()


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_every_module_has_its_tests(path):
    """The tests mirror the roots; what is tested elsewhere says where."""
    root = root_of(path)
    folder = path.relative_to(ROOTS[root]).parent
    mirror = ROOT / "tests" / TESTS[root] / folder / f"test_{path.name}"
    elsewhere = ELSEWHERE.get(shown(path))
    assert mirror.is_file() or (elsewhere and (ROOT / elsewhere).exists())
    assert not (mirror.is_file() and elsewhere)
