#!/usr/bin/env bash
# Expected: `scaled_dot_product_attention` of a row whose mask leaves nothing, as of padding on the left under
#   a causal mask, is zeros in the exported file as in torch.
# Happens: with a mask of truth values the row is an average over what is masked; with -inf in a mask of reals it
#   is NaN, and a second layer's attention takes the NaN into every row that sees it with a weight of 0: all
#   rows. A negative `scale` is NaN everywhere, as its root is taken. No warning; the same in both engines.
# Versions: torch 2.13.0, onnxscript 0.7.2, onnxruntime 1.31.1
# Source: torch's documentation of scaled_dot_product_attention; met by exporting some 400 functions
# Guess: missed ("zeros, as torch has them since 2.5"; scale kept)
. "$(dirname "$0")/lib.sh"
packages torch==2.13.0 onnxscript==0.7.2 onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
python 2>/dev/null <<'PY'
import contextlib, io
import numpy as np, onnxruntime, torch
from torch.nn.functional import scaled_dot_product_attention as attention

class Layers(torch.nn.Module):
    def __init__(self, count, **how):
        super().__init__()
        self.count, self.how = count, how
    def forward(self, x, mask):
        for _ in range(self.count):
            x = x + attention(x, x, x, mask, **self.how)
        return x

x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 1, 4, 8)).astype(np.float32))
seen_by = torch.ones(4, 4).tril().bool() & torch.tensor([False, True, True, True])  # one of padding, then three
reals = torch.zeros(4, 4).masked_fill(~seen_by, float("-inf"))
cases = {
    "truth values, one layer": (Layers(1), seen_by), "truth values, two layers": (Layers(2), seen_by),
    "-inf, one layer": (Layers(1), reals), "-inf, two layers": (Layers(2), reals),
    "nothing masked, scale 0.5": (Layers(1, scale=0.5), torch.zeros(4, 4)),
    "nothing masked, scale -0.5": (Layers(1, scale=-0.5), torch.zeros(4, 4)),
}
seen = []
for name, (model, mask) in cases.items():
    right = model(x, mask).numpy()[0, 0]
    with contextlib.redirect_stdout(io.StringIO()):
        made = torch.onnx.export(model.eval(), (x, mask), dynamo=True)
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(None, {row.name: one.numpy() for row, one in zip(session.get_inputs(), (x, mask))})[0][0, 0]
    seen.append("".join("N" if np.isnan(a).any() else "=" if np.allclose(a, b, atol=1e-4) else "x" for a, b in zip(got, right)))
    print(f"{name}: rows as in torch (=), others (x), NaN (N): {seen[-1]}; torch has NaN: {bool(np.isnan(right).any())}")
raise SystemExit(seen != ["x===", "x===", "N===", "NNNN", "====", "NNNN"])
PY
