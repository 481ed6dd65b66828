#!/usr/bin/env bash
# Expected: hummingbird's conversion of a LogisticRegression with three classes gives scikit-learn's
#   probabilities.
# Happens: it gives the sigmoid of each class, scaled to one, where scikit-learn gives the softmax: labels
#   agree, probabilities are off by up to 0.5. With two classes they are right.
# Versions: hummingbird-ml 0.4.12, scikit-learn 1.9.1, torch 2.13.0
# Source: scikit-learn's LogisticRegression (multinomial since the parameter `multi_class` went)
# Guess: missed ("equal")
. "$(dirname "$0")/lib.sh"
packages hummingbird-ml==0.4.12 scikit-learn==1.9.1 torch==2.13.0
python <<'PY'
import numpy as np
from hummingbird.ml import convert
from sklearn.linear_model import LogisticRegression

x = np.random.default_rng(0).standard_normal((200, 4))
seen = {}
for classes, borders in (2, [0]), (3, [-0.5, 0.5]):
    model = LogisticRegression().fit(x, np.digitize(x[:, 0], borders))
    other = convert(model, "torch")
    assert (model.predict(x) == other.predict(x)).all()
    scores = 1 / (1 + np.exp(-model.decision_function(x)))
    right = model.predict_proba(x)
    seen[classes] = abs(other.predict_proba(x) - right).max()
    print(f"{classes} classes: probabilities off by {seen[classes]:.2g}")
sigmoids = scores / scores.sum(1, keepdims=True)
print(f"three sigmoids, scaled, against hummingbird's: {abs(other.predict_proba(x) - sigmoids).max():.2g}")
raise SystemExit(not (seen[2] < 1e-4 < 0.1 < seen[3] and abs(other.predict_proba(x) - sigmoids).max() < 1e-4))
PY
