"""The program that a spare executor loads, so that a model's is not the first."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

CODE = """
import sys
from ge_backend.device.pytorch.rehearsal import load_a_program
load_a_program()
known = len(sys.modules)
import torch
torch.export.load(sys.argv[1]).module()
print(len(sys.modules) - known)
"""


def test_little_is_left_to_import(tmp_path):
    """Of the more than a thousand modules that a first load brings."""
    import torch

    torch.export.save(
        torch.export.export(torch.nn.Linear(2, 3), (torch.zeros(1, 2),)), tmp_path / "model.pt2"
    )
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "model.pt2")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) < 50
