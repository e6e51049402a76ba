"""What the pages say where something lies, lies there; what they link to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
MAPS = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("adding-*.md"))]

_FOLDERS = "apps|docs|examples|export|kernels|models|runtime|src|targets|tests|tools|widgets"
_NAMED = re.compile(rf"`((?:{_FOLDERS})/[\w./*-]*)`")
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.stem)
def test_named_files_exist(page: Path) -> None:
    named = _NAMED.findall(page.read_text(encoding="utf-8"))
    assert named, "a page that maps the code names files of it"
    for name in named:
        anything = re.sub(r"NAME|TARGET", "*", name.rstrip("/"))  # the reader's to choose
        assert any(ROOT.glob(anything)), name


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if not link.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / link).exists(), link
