"""Standard ONNX operators, for any runtime that reads them."""
