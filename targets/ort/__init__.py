"""ONNX Runtime's own operators, on any of its providers."""
