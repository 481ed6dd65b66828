#!/usr/bin/env bash
# What nobody could find out without an NPU, asked of one in a quarter of an hour. The report is for an issue.
# Needs CANN with its compiler and Python with numpy and onnx; torch_npu for the questions about torch.
# `PYTHON` names another interpreter. No server, no network.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD/backend/ge:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export TORCH_DEVICE_BACKEND_AUTOLOAD=0 # probes import torch_npu themselves

if ! "$PYTHON" -c 'import acl' 2>/dev/null; then
  for script in /usr/local/Ascend/cann/set_env.sh /usr/local/Ascend/ascend-toolkit/set_env.sh; do
    # shellcheck disable=SC1090
    if [ -f "$script" ]; then
      set +u && . "$script" "" && set -u # with no argument it would see ours
      break
    fi
  done
fi

if ! "$PYTHON" -c 'import numpy, onnx'; then
  echo "most questions need numpy and onnx: $PYTHON -m pip install numpy onnx" >&2
  exit 2
fi
"$PYTHON" -m tools.probes.npu "$@"
