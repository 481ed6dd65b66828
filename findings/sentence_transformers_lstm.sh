#!/usr/bin/env bash
# Expected: the modules LSTM and CNN after a transformer see each text without its padding: a text's vector does
#   not depend on the longer texts beside it.
# Happens: LSTM after a transformer cannot run (it wants `sentence_lengths`, which only WordEmbeddings
#   gives); CNN runs over the padding, and a text's vector changes with its neighbours.
# Versions: sentence-transformers 6.2.0, transformers 5.23.0, torch 2.13.0
# Source: sentence_transformers' modules lstm.py and cnn.py
# Guess: missed ("LSTM is packed"; CNN stood with it)
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
from sentence_transformers import models

def moved(*modules):
    model = SentenceTransformer(modules=[models.Transformer(str(folder)), *modules])
    return abs(model.encode(["a b"])[0] - model.encode(["a b", "a b c d a b c"])[0]).max()

try:
    lstm = moved(models.LSTM(16, 8), models.Pooling(16))
except KeyError as error:
    lstm = f"KeyError {error}"
cnn, mean = moved(models.CNN(16, 8), models.Pooling(24)), moved(models.Pooling(16))
print(f"LSTM: {lstm}; a longer neighbour moves CNN's vector by {cnn:.2g}, a plain mean by {mean:.2g}")
raise SystemExit(not (lstm == "KeyError 'sentence_lengths'" and cnn > 0.01 and mean < 1e-5))
PY
