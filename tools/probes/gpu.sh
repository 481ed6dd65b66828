#!/usr/bin/env bash
# Everything that a borrowed GPU is good for, in parts of less than ten minutes each:
#   tools/probes/gpu.sh --part works      checks and contract tests
#   tools/probes/gpu.sh --part figures    eager, captured and planned batches, encoders without padding
#   tools/probes/gpu.sh --part generation steps of text generation per bucket, captured and eager
#   tools/probes/gpu.sh --part serving    on the real server, against plain Python models
# Without a part, all of them. What it prints is also in .cache/gpu-report.txt.
# Needs Python with torch (CUDA) and numpy, and no network. Encoders need transformers, too, and
# serving the project itself, installed with the extras server, import and tools. `PYTHON` names another interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD/backend/ge:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export TORCH_DEVICE_BACKEND_AUTOLOAD=0 # another vendor's torch extension may be installed

mkdir -p .cache
"$PYTHON" -m tools.probes.gpu "$@" | tee -a .cache/gpu-report.txt
