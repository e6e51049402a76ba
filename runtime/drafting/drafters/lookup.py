"""Proposes what followed the end of the text where it occurred before, in prompt or output.

Text that copies from the prompt is found again after every edit, as soon as a suffix of it is:
input-guided aggressive decoding without its restriction to one input.

Source: Aggressive Decoding (Ge et al., 2022), Prompt Lookup Decoding (Saxena, 2023); matches of any
length as in SAM-Decoding (Hu et al., 2024).
"""

from __future__ import annotations

from edgedec.runtime.drafting.compiled import CompiledDrafter
from edgedec.runtime.drafting.drafters import FreeMethod


class PromptLookup(CompiledDrafter):
    """Finds the longest suffix of the text that occurred before; an incremental index does it.

    Where occurrences went on differently, the frequent ones branch off, the latest first of equals.
    The indexes of a few texts that ended are kept, for the next turns of their conversations.
    """

    name = "lookup"


METHOD = FreeMethod(
    "what followed the last words before, in the prompt or the output", lambda parts: PromptLookup()
)
