#!/usr/bin/env bash
# Expected: skl2onnx keeps the probabilities of KNeighborsClassifier(weights="distance") and of
#   CalibratedClassifierCV(method="isotonic"), and the values of Normalizer("max"), as it keeps those of
#   their siblings (uniform weights, "sigmoid", "l1"), or refuses them.
# Happens: neighbours are all counted as one each; the isotonic curve is not interpolated, but its
#   nearest point taken (off by up to 0.3); the normalizer divides by the largest value where
#   scikit-learn divides by the largest absolute one.
# Versions: skl2onnx 1.20.0, scikit-learn 1.9.1, onnxruntime 1.31.1
# Source: scikit-learn's documentation of the three; skl2onnx's calibrated_classifier_cv.py,
#   _transform_isotonic; onnx's operator Normalizer (ai.onnx.ml): MAX is x / max(x)
# Guess: missed ("right")
. "$(dirname "$0")/lib.sh"
packages skl2onnx==1.20.0 scikit-learn==1.9.1 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
python <<'PY'
import numpy as np, onnxruntime
from skl2onnx import to_onnx
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import Normalizer

random = np.random.default_rng(0)
x, new = random.standard_normal((2, 200, 4)).astype(np.float32)
y = (x[:, 0] + 0.3 * x[:, 1] > 0.2).astype(int)

def both(model, ask="predict_proba"):
    model.fit(x, y)
    options = {"zipmap": False} if ask == "predict_proba" else None
    made = to_onnx(model, x[:1], options=options).SerializeToString()
    return onnxruntime.InferenceSession(made).run(None, {"X": new})[-1], getattr(model, ask)(new)

off = {}
for name, model, ask in (
    ("uniform neighbours", KNeighborsClassifier(3), "predict_proba"),
    ("neighbours by distance", KNeighborsClassifier(3, weights="distance"), "predict_proba"),
    ("sigmoid", CalibratedClassifierCV(LogisticRegression(), method="sigmoid"), "predict_proba"),
    ("isotonic", CalibratedClassifierCV(LogisticRegression(), method="isotonic"), "predict_proba"),
    ("l1", Normalizer("l1"), "transform"),
    ("max", Normalizer("max"), "transform"),
):
    got, right = both(model, ask)
    off[name] = float(abs(got - right).max())
    print(f"{name}: off by {off[name]:.2g}")
counted = both(KNeighborsClassifier(3))[0]
same = np.allclose(both(KNeighborsClassifier(3, weights="distance"))[0], counted)
largest = np.allclose(both(Normalizer("max"), "transform")[0], new / new.max(1, keepdims=True), rtol=1e-4)
print(f"by distance is uniform: {same}; max is x / max(x): {largest}")
right = all(off[name] < 1e-5 for name in ("uniform neighbours", "sigmoid", "l1"))
wrong = all(off[name] > 0.05 for name in ("neighbours by distance", "isotonic", "max"))
raise SystemExit(not (right and wrong and same and largest))
PY
