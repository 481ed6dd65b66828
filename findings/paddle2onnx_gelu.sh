#!/usr/bin/env bash
# Expected: `GELU(approximate=True)` is exported as the approximation by tanh that it computes.
# Happens: it is written as the exact GELU, so that each layer of a model that was trained with the
#   approximation is off by up to 4.7e-4.
# Versions: paddle2onnx 2.1.0, paddlepaddle 3.3.1
# Source: Paddle's documentation of paddle.nn.functional.gelu; onnx's operator Gelu-20 has `approximate`
# Guess: missed ("kept, as operators")
. "$(dirname "$0")/lib.sh"
paddle
python <<'PY'
x = np.linspace(-4, 4, 801, dtype=np.float32)[np.newaxis]
right, got = both(nn.GELU(approximate=True), x)
exact = nn.GELU()(paddle.to_tensor(x)).numpy()
off, otherwise = float(abs(got - right).max()), float(abs(got - exact).max())
print(f"off by {off:.2g} from the approximation, by {otherwise:.2g} from the exact one")
raise SystemExit(not (off > 1e-4 and otherwise < 1e-5))
PY
