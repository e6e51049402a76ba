"""Questions that only the person at the window can answer."""

from __future__ import annotations

from enum import StrEnum

from PySide6.QtWidgets import QMessageBox, QWidget

_Button = QMessageBox.StandardButton


class SaveAnswer(StrEnum):
    """What shall be done."""

    SAVE = "save"
    DISCARD = "discard"
    CANCEL = "cancel"
    OVERWRITE = "overwrite"
    RELOAD = "reload"


def ask_about_unsaved(parent: QWidget, title: str) -> SaveAnswer:
    """Returns whether unsaved text is saved, or discarded, before its document is closed."""
    buttons = _Button.Save | _Button.Discard | _Button.Cancel
    text = f"{title} has text that is not saved."
    button = QMessageBox.question(parent, "edgedec", text, buttons, _Button.Save)
    return {_Button.Save: SaveAnswer.SAVE, _Button.Discard: SaveAnswer.DISCARD}.get(
        button, SaveAnswer.CANCEL
    )


def ask_about_changed(parent: QWidget, title: str) -> SaveAnswer:
    """Returns what becomes of a file that another program changed while it was edited here."""
    box = QMessageBox(parent)
    box.setIcon(QMessageBox.Icon.Warning)
    box.setText(f"{title} was changed by another program since it was read.")
    overwrite = box.addButton("Overwrite", QMessageBox.ButtonRole.DestructiveRole)
    reload = box.addButton("Reload", QMessageBox.ButtonRole.ResetRole)
    box.addButton(_Button.Cancel)
    box.exec()
    chosen = box.clickedButton()
    if chosen is overwrite:
        return SaveAnswer.OVERWRITE
    return SaveAnswer.RELOAD if chosen is reload else SaveAnswer.CANCEL


def ask_about_left_behind(parent: QWidget, titles: list[str]) -> SaveAnswer:
    """Returns whether text that an editor left unsaved is opened, forgotten, or asked for later."""
    box = QMessageBox(parent)
    box.setText("An editor ended before this was saved: " + ", ".join(titles) + ".")
    opened = box.addButton("Open", QMessageBox.ButtonRole.AcceptRole)
    forgotten = box.addButton("Forget", QMessageBox.ButtonRole.DestructiveRole)
    box.addButton("Later", QMessageBox.ButtonRole.RejectRole)
    box.exec()
    chosen = box.clickedButton()
    if chosen is opened:
        return SaveAnswer.RELOAD
    return SaveAnswer.DISCARD if chosen is forgotten else SaveAnswer.CANCEL
