"""The page of models says what the catalogue says."""

from __future__ import annotations

from pathlib import Path

from edgedec.export.checkpoints.catalogue import CATALOGUE, CatalogueEntry

PAGE = Path(__file__).parents[2] / "docs/models.md"


def _row(name: str, entry: CatalogueEntry) -> str:
    sizes = f"{entry.n_bytes / 1e9:.1f} GB | {entry.ram_bytes / 1e9:.1f} GB"
    draft = f"`{entry.draft}`" if entry.draft else ""
    tried = "yes" if entry.is_tried else "no"
    return f"| `{name}` | {sizes} | {entry.purpose} | {draft} | {entry.licence} | {tried} |"


def test_every_entry_has_its_row() -> None:
    rows = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    assert rows == [_row(name, entry) for name, entry in CATALOGUE.items()]


def test_entries_are_sorted_by_size() -> None:
    sizes = [entry.n_bytes for entry in CATALOGUE.values()]
    assert sizes == sorted(sizes)
    assert {entry.kind for entry in CATALOGUE.values()} == {"chat", "code"}
