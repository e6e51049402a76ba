"""What the front door exports is complete, sorted and importable."""

from __future__ import annotations

import types

import edgedec


def test_all_is_complete_and_sorted() -> None:
    public = {
        name
        for name in dir(edgedec)
        if not name.startswith("_") and not isinstance(getattr(edgedec, name), types.ModuleType)
    }
    public |= {"__version__", "export"}  # the second is a package that can be called
    assert set(edgedec.__all__) == public
    assert list(edgedec.__all__) == sorted(edgedec.__all__)


def test_version() -> None:
    assert edgedec.__version__.count(".") == 2


def test_errors_share_a_base() -> None:
    for name in edgedec.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(edgedec, name), edgedec.EdgedecError)
