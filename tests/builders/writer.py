"""A tiny language model with a tokenizer, as a checkpoint folder, and the truth about it."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

PROMPTS = (
    "once upon a time",
    "a",
    "the quick brown fox jumps over the lazy dog and goes on to the next field",
    "naïve 你好 😀",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20",
)
VOCABULARY = 300


@dataclass
class Writer:
    """The folder of a checkpoint, transformers' model of it, its tokenizer, and peft's models.

    Attributes:
        longest: what `truth` has found by prompt and adapter, which is slow.
    """

    folder: Path
    model: Any
    tokenizer: tokenizers.Tokenizer
    adapted: dict[str, Any] = field(default_factory=dict)
    longest: dict[tuple[str, str | None], list[int]] = field(default_factory=dict)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def text(self, ids: list[int]) -> str:
        """Return the whole characters of a text that may end within one."""
        return self.tokenizer.decode(ids).rstrip("\ufffd")

    def truth(self, prompt: str, count: int, adapter: str | None = None) -> list[int]:
        """Return what the model, or peft's with an adapter, writes greedily after a prompt alone."""
        found = self.longest.get((prompt, adapter), [])
        if len(found) >= count:
            return found[:count]
        ids = torch.tensor([self.encode(prompt)])
        model = self.adapted[adapter] if adapter else self.model
        with torch.inference_mode():
            written = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        self.longest[prompt, adapter] = written[0, ids.shape[1] :].tolist()
        return self.longest[prompt, adapter][:]


def make_writer(
    folder: Path, seed: int = 0, positions: int = 256, head_dim: int | None = None
) -> Writer:
    """Write a Llama of 60,000 random weights and a byte-level tokenizer into a folder."""
    transformers.utils.logging.disable_progress_bar()
    tokenizer = write_tokenizer(folder)
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=head_dim,
            max_position_embeddings=positions,
            initializer_range=0.5,  # so large that no two scores are close
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
    ).eval()
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    return Writer(folder, model, tokenizer)


def write_apprentice(model: Any, folder: Path) -> None:
    """Write a checkpoint of nearly the same weights into a folder: it often agrees."""
    draft = copy.deepcopy(model)
    torch.manual_seed(2)
    with torch.no_grad():
        for weights in draft.parameters():
            weights.add_(0.03 * weights.std() * torch.randn_like(weights))
    draft.save_pretrained(folder)


def write_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """Write `tokenizer.json`: every byte has its token, and token 0 ends a text."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(PROMPTS * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer
