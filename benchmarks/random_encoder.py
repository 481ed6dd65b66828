"""Encoders of random weights, in the sizes that accelerators are for: nothing to download.

A checkpoint as sentence-transformers saves it, and what `torch.export` makes of it. Times do not
depend on what the weights are.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.encoder.systems import CHECKPOINT
from benchmarks.rivals.forward import ENGINES

__all__ = ["SIZES", "write_checkpoint", "write_encoder"]

# Layers, width, heads: as all-MiniLM-L6-v2, bge-base-en and bge-large-en have them.
SIZES = {"bert-small": (6, 384, 12), "bert-base": (12, 768, 12), "bert-large": (24, 1024, 16)}
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "sentence_embedding"
# Folder and kind of sentence-transformers' modules.
MODULES = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}


def write_encoder(size: str, folder: Path) -> int:
    """Write the files of a random encoder, as `systems` calls them; return its output's width."""
    from demo.export import load, to_program  # noqa: PLC0415 - seconds, which others need not spend

    write_checkpoint(size, folder / CHECKPOINT)
    to_program(load(folder / CHECKPOINT), folder / ENGINES["torch"], INPUTS, OUTPUT)
    return SIZES[size][1]


def write_checkpoint(size: str, folder: Path) -> None:
    """Write a random encoder as sentence-transformers saves it."""
    import torch  # noqa: PLC0415 - likewise
    import transformers  # noqa: PLC0415

    layers, width, heads = SIZES[size]
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    bert = transformers.BertModel(config, add_pooling_layer=False).eval()
    bert.save_pretrained(folder)
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(MODULES.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
