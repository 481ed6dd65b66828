#!/usr/bin/env bash
# Expected: a file of CatBoost's own `save_model(format="onnx")` answers what `predict` and `predict_proba` do, and
#   what cannot be kept is refused, as floating-point labels and trees that are not symmetric are.
# Happens: labels of 3 and 5 become 0 and 1 in the file (texts are kept); Poisson and Tweedie lose their
#   exponential; "MultiClassOneVsAll" and "MultiLogloss" get a softmax over all classes in place of a sigmoid for each.
#   The shape that the file declares of a regression, [batch], is not the one that it answers, [batch, 1].
# Versions: catboost 1.2.10, onnxruntime 1.31.1
# Source: CatBoost's documentation of "Export a model to ONNX" and of the loss functions; `classes_` of the model
# Guess: missed ("labels and exponential kept; one against all right or refused")
. "$(dirname "$0")/lib.sh"
packages catboost==1.2.10 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
python 2>/dev/null <<'PY'
import tempfile
import numpy as np, onnxruntime
from catboost import CatBoostClassifier, CatBoostRegressor

onnxruntime.set_default_logger_severity(4)
x = np.random.default_rng(0).standard_normal((600, 4)).astype(np.float32)
two, three, number = (x[:, 0] > 0.2).astype(int), np.digitize(x[:, 0], [-0.5, 0.5]), np.exp(x[:, 0] / 2)
path = tempfile.mkdtemp() + "/m.onnx"

def both(kind, y, **how):
    model = kind(iterations=30, depth=4, random_seed=0, allow_writing_files=False, **how).fit(x, y, verbose=False)
    model.save_model(path, format="onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    got = session.run(None, {"features": x})
    if kind is CatBoostRegressor:
        print(f"{how['loss_function']}: declared {session.get_outputs()[0].shape}, answered {got[0].shape}")
        return got[0].ravel(), model.predict(x), got[0].ndim == 2
    ours = np.array([list(row.values()) for row in got[1]])
    labels = np.array(got[0]).tolist(), model.predict(x).ravel().tolist()
    return ours, model.predict_proba(x), labels

off, labels = {}, {}
for name, kind, y, how in (
    ("two classes", CatBoostClassifier, two, {}),
    ("no and yes", CatBoostClassifier, np.array(["no", "yes"])[two], {}),
    ("3 and 5", CatBoostClassifier, two * 2 + 3, {}),
    ("three classes", CatBoostClassifier, three, {"loss_function": "MultiClass"}),
    ("one against all", CatBoostClassifier, three, {"loss_function": "MultiClassOneVsAll"}),
    ("two labels at once", CatBoostClassifier, np.stack([two, three % 2], 1), {"loss_function": "MultiLogloss"}),
    ("RMSE", CatBoostRegressor, number, {"loss_function": "RMSE"}),
    ("Poisson", CatBoostRegressor, number, {"loss_function": "Poisson"}),
    ("Tweedie", CatBoostRegressor, number, {"loss_function": "Tweedie:variance_power=1.5"}),
):
    got, right, labels[name] = both(kind, y, **how)
    off[name] = abs(got - right).max()
    print(f"{name}: off by {off[name]:.2g}")
    if name in ("Poisson", "Tweedie"):
        print(f"  its exponential is off by {abs(np.exp(got) - right).max():.2g}")
        off[name + " as exp"] = abs(np.exp(got) - right).max()
asked, right = labels["3 and 5"]
print("labels of 3 and 5:", sorted(set(right)), "in the file", sorted(set(asked)))
wrong = {name for name, far in off.items() if far > 1e-3}
holds = wrong == {"one against all", "two labels at once", "Poisson", "Tweedie"} and labels["no and yes"][0] == labels["no and yes"][1]
raise SystemExit(not (holds and set(right) == {3, 5} and set(asked) == {0, 1} and labels["RMSE"]))
PY
