#!/usr/bin/env bash
# Expected: silero-vad's ONNX file takes the 512 samples that its TorchScript file takes, or refuses them.
# Happens: it wants 64 samples of the previous frame before them (576), which the package's own wrapper
#   adds and the file does not ask for: 512 bare samples, and all lengths in between, are answered, and
#   the highest probability of this signal is half of what it should be.
# Versions: silero-vad 6.2.3, onnxruntime 1.31.1, torch 2.13.0
# Source: silero_vad/utils_vad.py, OnnxWrapper, context_size
# Guess: missed ("refuses other lengths than 576")
. "$(dirname "$0")/lib.sh"
packages onnxruntime==1.31.1 torch==2.13.0 numpy==2.4.6
"$venv/bin/pip" install --quiet --no-deps silero-vad==6.2.3 2>/dev/null || exit 77
python <<'PY'
import importlib.util, pathlib
import numpy as np, onnxruntime, torch

data = pathlib.Path(importlib.util.find_spec("silero_vad").origin).parent / "data"
session = onnxruntime.InferenceSession(data / "silero_vad.onnx")
script = torch.jit.load(data / "silero_vad.jit")
script.reset_states()
t = np.arange(48000) / 16000
wave = 0.3 * np.sin(2 * np.pi * 150 * t * (1 + 0.1 * np.sin(6 * np.pi * t))) + 0.2 * np.sin(1400 * np.pi * t)
frames = (wave * (np.sin(4 * np.pi * t) > 0)).astype(np.float32)[: 48000 // 512 * 512].reshape(-1, 1, 512)

def probabilities(context):
    state, before, found = np.zeros((2, 1, 128), np.float32), np.zeros((1, 64), np.float32), []
    for frame in frames:
        samples = np.concatenate([before, frame], 1) if context else frame
        before = frame[:, -64:]
        found.append(session.run(None, {"input": samples, "state": state, "sr": np.array(16000)}))
        state = found[-1][1]
    return np.array([output.item() for output, _ in found])

right = np.array([script(torch.from_numpy(frame), 16000).item() for frame in frames])
whole, bare = probabilities(True), probabilities(False)
print(f"highest probability: TorchScript {right.max():.3f}, ONNX with 64 samples in front {whole.max():.3f}, bare {bare.max():.3f}")
raise SystemExit(not (abs(whole - right).max() < 1e-4 and abs(bare - right).max() > 0.03))
PY
