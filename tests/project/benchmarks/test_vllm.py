"""vLLM beside the others: what is seen when its server does not come up."""

import asyncio
from pathlib import Path

import pytest
from benchmarks.generation import vllm


def test_a_server_that_ends_early_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error holds the status and the server's own last lines."""
    monkeypatch.setattr(vllm, "prepare", lambda *_: tmp_path)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho operator torchvision::nms does not exist >&2\nexit 7\n")
    python.chmod(0o755)
    system = vllm.Vllm(python, "bf16")
    with pytest.raises(RuntimeError, match=r"status 7(.|\n)*torchvision::nms does not exist"):
        asyncio.run(system.__aenter__())
