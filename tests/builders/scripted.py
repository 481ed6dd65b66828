"""A tiny language model that says what a script has: fixed text behind fixed tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = "<|im_end|>"
CONFIG = """backend: "ge"
instance_group [ { kind: KIND_CPU } ]
parameters { key: "kv_cache_bytes" value { string_value: "64MiB" } }
"""
# So many that random rows are next to orthogonal: the successor's logit is then far above others.
HIDDEN, LETTERS = 768, sorted(pre_tokenizers.ByteLevel.alphabet())


def write_scripted(
    folder: Path, says: Mapping[str, tuple[str, ...]], template: str, *, beside: bool = False
) -> None:
    """Write a model folder: behind a prompt that ends with a key come its pieces, and the end.

    Args:
        folder: of the model, in a repository.
        says: each key and each piece is one token, with one successor; bytes are tokens, too.
        template: of chats.
        beside: only `tokenizer_config.json` names the tokens that are no bytes.
    """
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    tokenizer = Tokenizer(
        models.BPE(vocab={each: at for at, each in enumerate(LETTERS)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, normalized=False, special=True)])
    rows = [(key, *pieces, END) for key, pieces in says.items()]
    words = dict.fromkeys(word for row in rows for word in row[:-1])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    tokenizer.save(str(version / "tokenizer.json"))
    given = {"eos_token": END, "chat_template": template}
    if beside:
        read = json.loads((version / "tokenizer.json").read_text())
        given["added_tokens_decoder"] = {one.pop("id"): one for one in read.pop("added_tokens")}
        (version / "tokenizer.json").write_text(json.dumps({**read, "added_tokens": []}))
    (version / "tokenizer_config.json").write_text(json.dumps(given))
    numbers = {
        tokenizer.token_to_id(one): tokenizer.token_to_id(other)
        for row in rows
        for one, other in pairwise(row)
    }
    _model(tokenizer.get_vocab_size(), numbers, tokenizer.token_to_id(END)).save_pretrained(version)


def _model(vocabulary: int, follows: Mapping[int, int], end: int) -> transformers.LlamaForCausalLM:
    """Return a model whose layers add nothing: its head looks up what follows the last token."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
    )
    model = transformers.LlamaForCausalLM(config).float()
    rows = torch.nn.functional.normalize(torch.randn(vocabulary, HIDDEN), dim=-1)
    head = torch.zeros(vocabulary, HIDDEN)
    for one, other in follows.items():
        head[other] += rows[one]
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(rows)
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.copy_(head)
    return model
