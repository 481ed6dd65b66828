#!/usr/bin/env bash
# Expected: a model that `save_pretrained` has written answers, loaded again, as it did before.
# Happens: of a Dense module's activation only the class's name is written: LeakyReLU(0.5) comes back with 0.01,
#   ELU(2) with 1, Hardtanh(-0.1, 0.1) from -1 to 1, Softmax(0) over the last axis. LayerNorm's `eps` comes back as 1e-5.
#   No warning. Activations without arguments, and a PReLU's slope, which is a weight, are kept.
# Versions: sentence-transformers 6.2.0, transformers 5.23.0, torch 2.13.0
# Source: sentence-transformers' modules dense.py and layer_norm.py; 2_Dense/config.json has `activation_function`
# Guess: missed ("arguments kept or refused")
. "$(dirname "$0")/lib.sh"
sentence_folder
python 2>/dev/null <<'PY'
from sentence_transformers import models
from torch import nn

def off(module):
    model = SentenceTransformer(modules=[models.Transformer(str(folder)), models.Pooling(16), module])
    saved = tempfile.mkdtemp()
    model.save_pretrained(saved)
    files = sorted(pathlib.Path(saved).glob("2_*/config.json"))
    said = json.loads(files[0].read_text()).get("activation_function", "") if files else ""
    return abs(model.encode(["a b", "c"]) - SentenceTransformer(saved).encode(["a b", "c"])).max(), said

seen = {}
for activation in (nn.ReLU(), nn.LeakyReLU(), nn.LeakyReLU(0.5), nn.ELU(2.0), nn.Hardtanh(-0.1, 0.1), nn.Softmax(0), nn.PReLU(init=0.7)):
    name = str(activation)
    seen[name], said = off(models.Dense(16, 8, activation_function=activation))
    print(f"{name}: off by {seen[name]:.2g}; the file says {said!r}")
for eps in (1e-5, 0.1):
    norm = models.LayerNorm(16)
    norm.norm.eps = eps
    seen[f"LayerNorm, eps {eps}"], _ = off(norm)
    print(f"LayerNorm, eps {eps}: off by {seen[f'LayerNorm, eps {eps}']:.2g}")
wrong = [name for name, far in seen.items() if far > 0.01]
names = [str(one) for one in (nn.LeakyReLU(0.5), nn.ELU(2.0), nn.Hardtanh(-0.1, 0.1), nn.Softmax(0))]
kept = max(far for name, far in seen.items() if name not in wrong) < 1e-6
raise SystemExit(not (wrong == [*names, "LayerNorm, eps 0.1"] and kept))
PY
