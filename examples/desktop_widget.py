"""A text field with suggestions in an application of one's own; needs the extra ``desktop``.

python examples/desktop_widget.py smollm2.edgedec --once
"""

from __future__ import annotations

import sys

from PySide6.QtWidgets import QApplication

import edgedec
from edgedec.widgets import AutocompleteEdit, Suggester, Trigger


def main(bundle: str, is_once: bool) -> None:
    """Shows a text field until it is closed, or until something was offered in it."""
    application = QApplication([])
    with edgedec.load(bundle) as engine:
        suggester = Suggester(engine)  # several fields may share it
        edit = AutocompleteEdit(suggester)
        edit.trigger = Trigger.MOVING
        edit.show()
        edit.setFocus()
        edit.setPlainText("1, 2, 3, 4, 5, 6, 7,")
        edit.moveCursor(edit.textCursor().MoveOperation.End)
        suggester.offered.connect(lambda offer: print("offered:", offer.text))
        if is_once:
            suggester.offered.connect(application.quit)
        application.exec()
        suggester.close()


if __name__ == "__main__":
    main(sys.argv[1], "--once" in sys.argv)
