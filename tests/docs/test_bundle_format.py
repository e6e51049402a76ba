"""The page about the bundle's format names every key there is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from edgedec.models.graph import Capabilities, GraphContract
from edgedec.models.manifest import BundleManifest
from edgedec.models.model_entry import ModelEntry

PAGE = Path(__file__).parents[2] / "docs" / "bundle-format.md"


@pytest.mark.parametrize("cls", [BundleManifest, ModelEntry, GraphContract, Capabilities])
def test_every_key_is_named(cls: type[Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [field.name for field in dataclasses.fields(cls) if f"`{field.name}`" not in page]
    assert not missing
