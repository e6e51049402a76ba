"""Pytest plug-in: tests use the library that run.sh built and try many more random matrices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from edgedec import kernels

FOLDER = Path(os.environ["SANITIZED_KERNELS"])


def use() -> None:
    """Puts the sanitized library before any other."""
    kernels.__path__.insert(0, str(FOLDER))  # where `library_path` looks first
    if kernels.library_path().parent != FOLDER:
        raise pytest.UsageError(f"no library in {FOLDER}: run make test-sanitize")


def pytest_configure(config: pytest.Config) -> None:
    """Tests the sanitized library, with many more random matrices."""
    use()
    settings.register_profile("sanitize", max_examples=2000, database=None)
    settings.load_profile("sanitize")


def pytest_report_header() -> str:
    """Returns which library is tested."""
    return f"sanitized kernels: {kernels.library_path()}, {', '.join(kernels.available_isas())}"
