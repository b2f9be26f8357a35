"""Translates a `Program` to an ONNX model."""
