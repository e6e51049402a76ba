"""What the front door and the kernels export is complete, sorted and importable."""

from __future__ import annotations

import importlib
import types

import pytest

import edgedec


@pytest.mark.parametrize("name", ["edgedec", "edgedec.kernels"])
def test_all_is_complete_and_sorted(name: str) -> None:
    module = importlib.import_module(name)
    public = {
        attribute
        for attribute in dir(module)
        if not attribute.startswith("_")
        and not isinstance(getattr(module, attribute), types.ModuleType)
    }
    if hasattr(module, "__version__"):
        public |= {"__version__", "export"}  # the second is a package that can be called
    assert set(module.__all__) == public
    assert list(module.__all__) == sorted(module.__all__)


def test_version() -> None:
    assert edgedec.__version__.count(".") == 2


def test_errors_share_a_base() -> None:
    for name in edgedec.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(edgedec, name), edgedec.EdgedecError)
