"""The compute of edgedec: packed matrices and the operators, on the best instruction set.

Applications reach the operators through ONNX Runtime (`library.library_path`); tests call them
directly, by `tests/doors/`. Wrong shapes are a ValueError; a missing library, or an ``EDGEDEC_ISA``
that cannot be used, a RuntimeError.
"""
