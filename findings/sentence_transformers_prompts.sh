#!/usr/bin/env bash
# Expected: `encode_document` of a folder with prompts {query, x}, no "document" and x as the default puts
#   x's prompt before the text, as `encode` does.
# Happens: it puts nothing: each folder has an empty prompt "document" of its own, which goes before the
#   default. A server that applies the default prompt to every text embeds documents otherwise.
# Versions: sentence-transformers 6.2.0, transformers 5.23.0, torch 2.13.0
# Source: config_sentence_transformers.json as saved; SentenceTransformer.encode_document
# Guess: missed ("the default prompt")
. "$(dirname "$0")/lib.sh"
sentence_folder
python 2>/dev/null <<'PY'
settings = folder / "config_sentence_transformers.json"
saved = json.loads(settings.read_text())
print("prompts as saved:", saved["prompts"])
plain = SentenceTransformer(str(folder))
settings.write_text(json.dumps({**saved, "prompts": {"query": "a ", "x": "b "}, "default_prompt_name": "x"}))
model = SentenceTransformer(str(folder))
same = lambda first, text: bool(np.allclose(first, plain.encode(text), atol=1e-6))
seen = {"encode": same(model.encode("c"), "b c"), "encode_query": same(model.encode_query("c"), "a c"),
        "encode_document, default": same(model.encode_document("c"), "b c"),
        "encode_document, bare": same(model.encode_document("c"), "c")}
print(seen)
raise SystemExit(list(seen.values()) != [True, True, False, True])
PY
