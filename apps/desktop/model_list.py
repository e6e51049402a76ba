"""The list of models: those ready for use, those that this machine can get, and those too large."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PySide6.QtCore import QMargins, QModelIndex, QPersistentModelIndex, QSize, Qt, Signal
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTreeWidget,
    QTreeWidgetItem,
    QWidget,
)

from edgedec.apps.console.terminal import bytes_text
from edgedec.export.library import Library

_READY, _FITTING, _LARGE = "Ready to use", "Fit this machine", "Too large for this machine"
_ROOM = 3
"""Units: pixels."""

_KEY = Qt.ItemDataRole.UserRole


@dataclass(frozen=True)
class ModelRow:
    """A line of the list. key: what is used or got, a bundle's path or a model's name.

    is_suggested: `edgedec models list` suggests it for suggestions while writing.
    """

    group: str
    key: str
    name: str
    purpose: str
    n_bytes: int
    state: str
    is_suggested: bool = False

    @property
    def is_ready(self) -> bool:
        """It can be used at once."""
        return self.group == _READY


def rows_of(table: Mapping[str, Any]) -> list[ModelRow]:
    """Returns the lines for the table that `edgedec models list --json` prints."""
    purposes = {Library.slug(model["name"]): model["for"] for model in table["models"]}
    best = {Library.slug(model["name"]) for model in table["models"] if _is_suggested(model)}
    ready = [_ready_row(bundle, purposes, best) for bundle in table["bundles"]]
    made = {Path(row.key).stem for row in ready}
    rest = [model for model in table["models"] if Library.slug(model["name"]) not in made]
    fitting = [_row(_FITTING, model) for model in rest if model.get("fits", True)]
    large = [_row(_LARGE, model) for model in rest if not model.get("fits", True)]
    return [*ready, *sorted(fitting, key=lambda row: not row.is_suggested), *large]


def suggested(rows: Iterable[ModelRow]) -> ModelRow | None:
    """Returns the model that is suggested for this machine, None if there is none."""
    return next((row for row in rows if row.is_suggested), None)


class ModelList(QTreeWidget):
    """Shows models in groups. used: with the row of a double click, or of Return."""

    used = Signal(object)

    def __init__(self, has_large: bool, parent: QWidget | None = None) -> None:
        """Lists also models that are too large if ``has_large``."""
        super().__init__(parent)
        self._has_large = has_large
        self.rows: list[ModelRow] = []
        self._items: dict[str, QTreeWidgetItem] = {}
        self.setHeaderLabels(["Model", "Good for", "Size", "State"])
        self.setRootIsDecorated(False)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setItemDelegate(_Roomy(self))
        self.setTextElideMode(Qt.TextElideMode.ElideRight)
        header = self.header()
        header.setStretchLastSection(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(1, QHeaderView.ResizeMode.Stretch)
        self.itemActivated.connect(self._use)

    def show_rows(self, rows: list[ModelRow]) -> None:
        """Lists ``rows``; what was selected stays so, or the suggested model is selected."""
        key = row.key if (row := self.selected()) is not None else ""
        best = suggested(rows)
        self.rows = [row for row in rows if self._has_large or row.group != _LARGE]
        self.clear()
        self._items.clear()
        groups: dict[str, QTreeWidgetItem] = {}
        for row in self.rows:
            if row.group not in groups:
                groups[row.group] = self._add_group(row.group)
            self._add(groups[row.group], row, is_best=row is best)
        for wanted_key in (key, best.key if best else ""):
            if wanted_key and self.select(wanted_key):
                return

    def select(self, key: str) -> bool:
        """Selects the row of a bundle or a model; returns whether there is one."""
        item = self._items.get(key)
        if item is not None:
            self.setCurrentItem(item)
        return item is not None

    def selected(self) -> ModelRow | None:
        """Returns the row that is selected and can be used."""
        items = self.selectedItems()
        key = items[0].data(0, _KEY) if items else None
        return next((row for row in self.rows if row.key == key), None)

    def _use(self) -> None:
        if (row := self.selected()) is not None:
            self.used.emit(row)

    def _add_group(self, title: str) -> QTreeWidgetItem:
        group = QTreeWidgetItem([title])
        group.setFlags(Qt.ItemFlag.ItemIsEnabled)
        self.addTopLevelItem(group)
        group.setFirstColumnSpanned(True)
        group.setExpanded(True)
        _embolden(group)
        return group

    def _add(self, group: QTreeWidgetItem, row: ModelRow, is_best: bool) -> None:
        size = bytes_text(row.n_bytes) if row.n_bytes else ""
        state = "suggested" if is_best and not row.is_ready else row.state
        item = QTreeWidgetItem([row.name, row.purpose, size, state])
        item.setData(0, _KEY, row.key)
        item.setTextAlignment(2, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        item.setToolTip(0, row.key)
        item.setToolTip(1, row.purpose)
        if row.group == _LARGE:
            item.setFlags(Qt.ItemFlag.NoItemFlags)
        else:
            self._items[row.key] = item
        group.addChild(item)


class _Roomy(QStyledItemDelegate):
    """Leaves some room above and below each line."""

    def sizeHint(  # noqa: N802
        self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> QSize:
        """Returns the usual size and some more."""
        return super().sizeHint(option, index).grownBy(QMargins(_ROOM, _ROOM, _ROOM, _ROOM))


def _embolden(item: QTreeWidgetItem) -> None:
    font = item.font(0)
    font.setBold(True)
    item.setFont(0, font)


def _row(group: str, model: Mapping[str, Any]) -> ModelRow:
    states = {"here": "downloaded", "pulled": "downloaded", "to fetch": "to download"}
    state, name = states.get(model["state"], model["state"]), model["name"]
    return ModelRow(group, name, name, model["for"], model["n_bytes"], state, _is_suggested(model))


def _ready_row(
    bundle: Mapping[str, Any], purposes: Mapping[str, str], best: Collection[str]
) -> ModelRow:
    path, model = Path(bundle["path"]).absolute(), bundle["model"]
    is_broken = model.startswith("broken: ")
    purpose = model if is_broken else purposes.get(path.stem) or f"made from {model}"
    state = "broken" if is_broken else "ready"
    is_best = path.stem in best and not is_broken
    return ModelRow(_READY, str(path), path.stem, purpose, bundle["n_bytes"], state, is_best)


def _is_suggested(model: Mapping[str, Any]) -> bool:
    return model.get("suggested_for") == "code"
