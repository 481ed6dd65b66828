"""The model of an engineer who knows that padding is waste: the batch end to end, in torch.

transformers' modules with an attention function of one's own, as its documentation shows. Copied as
`1/model.py`.
"""

import asyncio  # noqa: F401 - else the stub imports it on the first request, which costs 25-75 ms
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import triton_python_backend_utils as pb_utils

try:
    from torch.nn.attention.varlen import varlen_attn  # since torch 2.10
except ImportError:
    varlen_attn = None


class TritonPythonModel:
    """Runs every batch in one forward pass without padding."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the checkpoint."""
        parameters = json.loads(args["model_config"])["parameters"]
        low = parameters["engine"]["string_value"].endswith("bf16")
        torch.set_num_threads(int(parameters["threads"]["string_value"]))
        self.device = torch.device(parameters["device"]["string_value"])
        self.lengths: list[int] = []
        # Flash attention, which a GPU has for 16 bits, takes all rows at once.
        flash = low and self.device.type == "cuda" and varlen_attn is not None
        transformers.AttentionInterface.register("rows", self.flash if flash else self.attention)
        self.model = transformers.AutoModel.from_pretrained(
            Path(__file__).parent / "checkpoint",
            dtype=torch.bfloat16 if low else torch.float32,
            attn_implementation="rows",
        ).to(self.device)
        self.model.eval()
        self.forward([np.full(24, 7)] * 8)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request; every request is one row."""
        tensors = (pb_utils.get_input_tensor_by_name(r, "input_ids") for r in requests)
        rows = self.forward([tensor.as_numpy()[0] for tensor in tensors])
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("sentence_embedding", row[None])])
            for row in rows
        ]

    def forward(self, rows: list[Any]) -> Any:
        """Return FP32 [rows, width]."""
        self.lengths = [len(row) for row in rows]
        ids = torch.from_numpy(np.concatenate(rows))[None].to(self.device)
        positions = torch.cat([torch.arange(length) for length in self.lengths])[None]
        ends = torch.tensor([0, *self.lengths]).cumsum(0)
        self.ends = ends.to(self.device, torch.int32)
        with torch.inference_mode():
            hidden = self.model(input_ids=ids, position_ids=positions.to(self.device))
            means = torch.stack(
                [row.float().mean(0) for row in hidden.last_hidden_state[0].split(self.lengths)]
            )
            return torch.nn.functional.normalize(means, dim=1).cpu().numpy()

    def attention(
        self, _module: Any, query: Any, key: Any, value: Any, _mask: Any, **_options: Any
    ) -> Any:
        """Attend row by row: FP [1, T, H, D] for [1, H, T, D]."""
        parts = zip(*(item.split(self.lengths, 2) for item in (query, key, value)), strict=True)
        found = [torch.nn.functional.scaled_dot_product_attention(*part) for part in parts]
        return torch.cat(found, 2).transpose(1, 2), None

    def flash(
        self, _module: Any, query: Any, key: Any, value: Any, _mask: Any, **_options: Any
    ) -> Any:
        """Likewise, in one call."""
        heads = (item[0].transpose(0, 1) for item in (query, key, value))
        longest = max(self.lengths)
        found = varlen_attn(*heads, self.ends, self.ends, longest, longest)
        return found[None], None
