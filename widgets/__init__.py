"""Suggestions in the text fields of Qt applications; needs the extra ``desktop``.

from edgedec.widgets import AutocompleteEdit, Suggester

suggester = Suggester(edgedec.load("qwen.edgedec"))
edit = AutocompleteEdit(suggester)
"""

from edgedec.widgets.autocomplete_edit import AutocompleteEdit, Trigger
from edgedec.widgets.suggester import Suggester

__all__ = ["AutocompleteEdit", "Suggester", "Trigger"]
