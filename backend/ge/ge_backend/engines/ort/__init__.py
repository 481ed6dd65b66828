"""ONNX files through ONNX Runtime."""
