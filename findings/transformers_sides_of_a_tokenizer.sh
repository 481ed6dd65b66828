#!/usr/bin/env bash
# Expected: `truncation_side` and `padding_side` that are set on a tokenizer are saved with it, as `model_max_length`
#   and `pad_token` are.
# Happens: both are lost, and the loaded one cuts a text's other end; given to `from_pretrained` they are saved. Whether
#   `truncation_side` is, hangs on whether the tokenizer has cut a text before: then tokenizer.json has the side. A
#   sentence-transformers model that is saved before its first text answers other vectors, once loaded.
# Versions: transformers 5.23.0, sentence-transformers 6.2.0
# Source: tokenizer_config.json and tokenizer.json as written; transformers/tokenization_utils_base.py, `save_pretrained`
# Guess: missed ("all saved")
. "$(dirname "$0")/lib.sh"
sentence_folder
python 2>/dev/null <<'PY'
from transformers import AutoTokenizer

def loaded(tokenizer):
    saved = tempfile.mkdtemp()
    tokenizer.save_pretrained(saved)
    return AutoTokenizer.from_pretrained(saved)

def told(tokenizer):
    kept = tokenizer("a b c d", truncation=True)["input_ids"]
    return tokenizer.truncation_side, tokenizer.padding_side, tokenizer.model_max_length, tokenizer.decode(kept)

def turned():
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.truncation_side = tokenizer.padding_side = "left"
    tokenizer.model_max_length, tokenizer.pad_token = 3, "a"
    return tokenizer

unused, used = turned(), turned()
used("a b c d", truncation=True)
told_first = AutoTokenizer.from_pretrained(folder, truncation_side="left", padding_side="left", model_max_length=3)
seen = {
    "set, not saved": told(turned()),
    "set and saved": told(loaded(unused)),
    "set, used and saved": told(loaded(used)),
    "given and saved": told(loaded(told_first)),
}
for name, what in seen.items():
    print(f"{name}: cuts on the {what[0]}, pads on the {what[1]}, {what[2]} tokens, of 'a b c d' keeps {what[3]!r}")
model = SentenceTransformer(str(folder))
model.tokenizer.truncation_side, model.max_seq_length = "left", 3
saved = tempfile.mkdtemp()
model.save_pretrained(saved)
far = abs(model.encode("a b c d") - SentenceTransformer(saved).encode("a b c d")).max()
print(f"a sentence-transformers model, saved and loaded: off by {far:.2g}")
left, lost = ("left", "left", 3, "b c d"), ("right", "right", 3, "a b c")
right = list(seen.values()) == [left, lost, ("left", "right", 3, "b c d"), left]
raise SystemExit(not (right and loaded(turned()).pad_token == "a" and far > 0.1))
PY
