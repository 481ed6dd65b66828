"""The first `torch.export.load` of a process, over a program of no size."""

from __future__ import annotations

import io

import torch

__all__ = ["load_a_program"]


def load_a_program() -> None:
    """Export, save and load one: what these import on first use is imported then."""
    file = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Identity(), (torch.zeros(1),)), file)
    file.seek(0)
    torch.export.load(file).module()
