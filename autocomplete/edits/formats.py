"""How models that predict edits are asked, by the name of their format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgedec.autocomplete.edits.edit_prompt import EditFormat
from edgedec.autocomplete.edits.instinct import InstinctFormat
from edgedec.autocomplete.edits.instruction import InstructionFormat
from edgedec.autocomplete.edits.seed_coder import Zeta2Format, Zeta21Format
from edgedec.autocomplete.edits.sweep import Sweep2Format, SweepFormat
from edgedec.autocomplete.edits.zeta import ZetaFormat
from edgedec.runtime.engine.engine import Engine

FORMATS: Mapping[str, Callable[[Engine], EditFormat]] = {
    "instruction": InstructionFormat,
    "sweep": SweepFormat,
    "sweep-2": Sweep2Format,
    "zeta": ZetaFormat,
    "zeta-2": Zeta2Format,
    "zeta-2.1": Zeta21Format,
    "instinct": InstinctFormat,
}
"""Formats by name. `instruction` is for any chat model, the others for those made for edits."""
