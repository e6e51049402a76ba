"""What the pages say where something lies, lies there; what they link to exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MAPS = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("adding-*.md"))]

_FOLDERS = (
    "apps|docs|examples|export|kernels|labs|models|runtime|src|targets|tests|tools|training|widgets"
)
_NAMED = re.compile(rf"`((?:{_FOLDERS})/[\w./*-]*)`")
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def test_named_files_exist() -> None:
    named = {page: _NAMED.findall(page.read_text(encoding="utf-8")) for page in MAPS}
    assert [page.name for page, names in named.items() if not names] == []  # maps name files
    missing = []
    for page, names in named.items():
        for name in names:
            anything = re.sub(r"NAME|TARGET", "*", name.rstrip("/"))  # the reader's to choose
            if not any(ROOT.glob(anything)):
                missing.append(f"{page.name}: {name}")
    assert not missing, "\n".join(missing)


def test_links_lead_somewhere() -> None:
    assert len(PAGES) > 10
    dead = [
        f"{page.name}: {link}"
        for page in PAGES
        for link in _LINK.findall(page.read_text(encoding="utf-8"))
        if not link.startswith(("http:", "https:", "mailto:")) and not (page.parent / link).exists()
    ]
    assert not dead, "\n".join(dead)
