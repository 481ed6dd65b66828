#!/usr/bin/env bash
# Expected: `AdaptiveAvgPool2D`, `AdaptiveMaxPool2D` and `Upsample(mode="area")` are exported as they
#   compute, or the exporter says that it cannot.
# Happens: they become a pool with windows of one size and one stride. Where the output's sizes divide the
#   input's that is the same; else each window lies elsewhere, and the numbers are others.
# Versions: paddle2onnx 2.1.0, paddlepaddle 3.3.1
# Source: Paddle's documentation of adaptive_avg_pool2d: window i is from floor(i * in / out) to
#   ceil((i + 1) * in / out)
# Guess: missed ("kept: written as slices and means")
. "$(dirname "$0")/lib.sh"
paddle
python <<'PY'
image = np.random.default_rng(0).standard_normal((1, 2, 5, 7)).astype(np.float32)
even = np.random.default_rng(0).standard_normal((1, 2, 6, 8)).astype(np.float32)
seen = {}
for name, layer in {
    "AdaptiveAvgPool2D": nn.AdaptiveAvgPool2D([3, 4]),
    "AdaptiveMaxPool2D": nn.AdaptiveMaxPool2D([3, 4]),
    "Upsample, area": nn.Upsample(size=[3, 4], mode="area"),
}.items():
    for sizes, x in (("5x7", image), ("6x8", even)):
        right, got = both(layer, x)
        seen[name, sizes] = float(abs(got - right).max())
        print(f"{name} of {sizes} to 3x4: of {abs(right).max():.1f} off by {seen[name, sizes]:.2g}")
raise SystemExit(not all((off > 0.1) == (sizes == "5x7") for (_, sizes), off in seen.items()))
PY
