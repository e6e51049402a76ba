"""Pytest plug-in: tests use the library that run.sh built and try many more random matrices.

ONNX Runtime then gives every array memory of its own, so that the sanitizer sees where it ends.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime
import pytest
from hypothesis import settings

from edgedec import kernels
from edgedec.kernels import cpu, library

FOLDER = Path(os.environ["SANITIZED_KERNELS"])


class OwnMemory(onnxruntime.SessionOptions):
    """Options of sessions whose arrays do not lie in one piece of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.enable_cpu_mem_arena = False
        self.enable_mem_pattern = False


def use() -> None:
    """Puts the sanitized library before any other, and `OwnMemory` before other options."""
    onnxruntime.SessionOptions = OwnMemory
    kernels.__path__.insert(0, str(FOLDER))  # where `library_path` looks first
    if library.library_path().parent != FOLDER:
        raise pytest.UsageError(f"no library in {FOLDER}: run make test-sanitize")


def pytest_configure(config: pytest.Config) -> None:
    """Tests the sanitized library, with many more random matrices."""
    use()
    settings.register_profile("sanitize", max_examples=2000, database=None)
    settings.load_profile("sanitize")


def pytest_report_header() -> str:
    """Returns which library is tested."""
    return f"sanitized kernels: {library.library_path()}, {', '.join(cpu.available_isas())}"
