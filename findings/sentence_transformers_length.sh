#!/usr/bin/env bash
# Expected: `max_seq_length` of a folder that is larger than the model's positions is cut to them, as it is
#   where the folder does not say any.
# Happens: it is taken at its word, and a text longer than the positions ends in an error of torch at the
#   first such request; without the key the positions are the limit.
# Versions: sentence-transformers 6.2.0, transformers 5.23.0, torch 2.13.0
# Source: sentence_bert_config.json; sentence_transformers/base/modules/transformer.py
# Guess: missed ("cut to the positions")
. "$(dirname "$0")/lib.sh"
packages sentence-transformers==6.2.0 transformers==5.23.0 torch==2.13.0 numpy==2.4.6
python 2>/dev/null <<'PY'
import json, pathlib, tempfile
import numpy as np, torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models as words, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

torch.manual_seed(0)
tokens = ["[PAD]", "[UNK]", "a", "b", "c", "d"]
tokenizer = Tokenizer(words.WordLevel({token: i for i, token in enumerate(tokens)}, "[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
made, folder = tempfile.mkdtemp(), pathlib.Path(tempfile.mkdtemp())
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(made)
BertModel(BertConfig(vocab_size=6, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                     intermediate_size=32, max_position_embeddings=16)).save_pretrained(made)
SentenceTransformer(made).save_pretrained(str(folder))
settings = folder / "sentence_bert_config.json"
long = "a " * 30
plain = SentenceTransformer(str(folder))
settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_seq_length": 64}))
wide = SentenceTransformer(str(folder))
print(f"positions 16: limit {plain.max_seq_length} without the key, {wide.max_seq_length} with 64")
shape = plain.encode(long).shape
try:
    wide.encode(long)
    error = None
except RuntimeError as raised:
    error = str(raised)
print("long text:", shape, "and", error)
raise SystemExit(not (plain.max_seq_length == 16 and wide.max_seq_length == 64 and shape == (16,) and error))
PY
