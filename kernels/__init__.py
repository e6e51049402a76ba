"""The compute of edgedec: packed matrices and the operators, on the best instruction set.

Applications reach the operators through ONNX Runtime (`library.library_path`); the functions of
`*_op.py` call them directly, for packing at export and for tests. Wrong shapes are a ValueError; a
missing library, or an ``EDGEDEC_ISA`` that cannot be used, a RuntimeError.
"""
