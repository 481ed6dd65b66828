"""A plain Python model that loads its file and serves nothing. Copied as `1/model.py`."""

import asyncio  # noqa: F401 - as in the other rivals
from pathlib import Path
from typing import Any


class TritonPythonModel:
    """Loads what lies beside it with the engine that runs it, as a model written by hand would."""

    def initialize(self, _args: dict[str, str]) -> None:
        """Import the engine and load the file."""
        (path,) = (p for p in Path(__file__).parent.iterdir() if p.suffix in _LOADERS)
        self.loaded = _LOADERS[path.suffix](str(path))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Refuse: nobody asks."""
        raise NotImplementedError(f"{len(requests)} requests to a model that is only loaded")


def _onnx(path: str) -> Any:
    import onnxruntime  # noqa: PLC0415

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _torch(path: str) -> Any:
    import torch  # noqa: PLC0415

    return torch.export.load(path).module()


def _json(path: str) -> Any:
    if path.endswith("tokenizer.json"):
        from tokenizers import Tokenizer  # noqa: PLC0415

        return Tokenizer.from_file(path)
    import PIL.Image  # noqa: PLC0415

    return PIL.Image


_LOADERS = {".onnx": _onnx, ".pt2": _torch, ".json": _json}
