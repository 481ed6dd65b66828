"""ONNX files and OpenVINO's own through OpenVINO."""
