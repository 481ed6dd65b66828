#!/usr/bin/env bash
# Expected: the modules LSTM and CNN after a transformer see each text without its padding: a text's vector does
#   not depend on the longer texts beside it.
# Happens: LSTM after a transformer cannot run (it wants `sentence_lengths`, which only WordEmbeddings
#   gives); CNN runs over the padding, and a text's vector changes with its neighbours.
# Versions: sentence-transformers 6.2.0, transformers 5.23.0, torch 2.13.0
# Source: sentence_transformers' modules lstm.py and cnn.py
# Guess: missed ("LSTM is packed"; CNN stood with it)
. "$(dirname "$0")/lib.sh"
sentence_folder
python 2>/dev/null <<'PY'
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
