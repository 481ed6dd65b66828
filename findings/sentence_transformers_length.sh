#!/usr/bin/env bash
# Expected: `max_seq_length` of a folder that is larger than the model's positions is cut to them, as it is
#   where the folder does not say any.
# Happens: it is taken at its word, and a text longer than the positions ends in an error of torch at the
#   first such request; without the key the positions are the limit.
# Versions: sentence-transformers 6.2.0, transformers 5.23.0, torch 2.13.0
# Source: sentence_bert_config.json; sentence_transformers/base/modules/transformer.py
# Guess: missed ("cut to the positions")
. "$(dirname "$0")/lib.sh"
sentence_folder
python 2>/dev/null <<'PY'
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
