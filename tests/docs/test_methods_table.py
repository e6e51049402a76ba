"""The table of methods in the documentation is what the registry says."""

from __future__ import annotations

import re
from pathlib import Path

from edgedec.runtime.drafting.drafters import drafter_names, find_drafter

PAGE = Path(__file__).parents[2] / "docs" / "decoding.md"


def test_every_drafter_has_its_row() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.M))
    for name in drafter_names():
        assert rows.pop(name, "").startswith(find_drafter(name).summary), name
    assert {"plain", "auto"} <= rows.keys()
