"""A language model that knows a few tales by heart: bytes in, bytes out.

An ordinary checkpoint of the Llama architecture, as any other would be put into a version folder.
It is trained for some seconds until it can tell each tale from its first words.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

__all__ = ["TALES", "tiny_writer"]

SEED = 20_240_604
STEPS = 400
RATE, ROUND, CLOSE = 4e-3, 25, 0.05
END = "<end>"
TALES = (
    "once upon a time a small boat left the harbour before the sun was up.",
    "the king had three daughters, and none of them could keep a secret.",
    "the sea was calm that day, and the gulls slept upon the waves.",
    "the days are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    "l'été fut long, puis vint l'hiver et ses étoiles ❄.",
)


def tiny_writer(path: Path) -> None:
    """Write the whole checkpoint into the folder in which `path` is.

    Raises:
        ValueError: it does not know one of the tales.
    """
    logging.disable_progress_bar()
    folder, tokenizer = path.parent, _tokenizer()
    end = tokenizer.token_to_id(END)
    texts = [[*tokenizer.encode(text).ids, end] for text in TALES]
    model = _trained(texts, tokenizer.get_vocab_size())
    model.generation_config = GenerationConfig(eos_token_id=end)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def _tokenizer() -> Tokenizer:
    """Return one token for each byte, and one for the end of a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


def _trained(texts: list[list[int]], vocabulary: int) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocabulary - 1,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)  # random weights from the seed
    longest = max(map(len, texts))
    # -100 is what the loss leaves out; what stands there is never looked at by what is before it.
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    labels = torch.tensor([text + [-100] * (longest - len(text)) for text in texts])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % ROUND == ROUND - 1 and float(loss.detach()) < CLOSE:
            break
    _check(model.eval(), texts)
    return model


def _check(model: LlamaForCausalLM, texts: list[list[int]]) -> None:
    """Raise where a tale does not go on from its first words letter for letter."""
    for text in texts:
        with torch.inference_mode():
            scores = model(torch.tensor([text])).logits[0]
        known = scores.argmax(-1).tolist()
        first = 8
        if known[first:-1] != text[first + 1 :]:
            raise ValueError(f"the trained writer does not know {bytes(text[:20])!r}")
