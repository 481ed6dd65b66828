"""Compiling ONNX files for an NPU with ATC."""
