"""Engines, one folder each: the only place that imports a vendor library."""

import os

# ONNX Runtime's own builds for Linux send names and hashes of models to their maker from 1.29 on,
# and read this when they are imported. `ORT_DISABLE_TELEMETRY=0` leaves it on.
# Source: onnxruntime 1.31.1, strings and open files of onnxruntime_pybind11_state.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
