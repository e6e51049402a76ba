"""A suggestion in the panel's own window below the caret, which Wayland has in place of ours."""

from __future__ import annotations

from edgedec.apps.type.ibus import messages
from edgedec.apps.type.ibus.engine import Engine
from edgedec.apps.type.text_place import TextPlace


class AuxiliaryText:
    """Shows a suggestion as auxiliary text of the engine that asks."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def show(self, text: str, place: TextPlace) -> None:
        if isinstance(place, Engine):
            self._engine = place
            place.send("UpdateAuxiliaryText", "vb", messages.text(text), True)

    def hide(self) -> None:
        if self._engine is not None:
            self._engine.send("HideAuxiliaryText")
            self._engine = None
