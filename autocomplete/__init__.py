"""Suggestions at the cursor while somebody types.

from edgedec.autocomplete import Autocompleter, Document

with edgedec.load("qwen.edgedec") as engine, Autocompleter(engine) as completer:
    offer = completer.update(Document("def add(a, b):\\n    return ", 27)).result()
"""

from edgedec.autocomplete.autocompleter import Autocompleter, OnOffer
from edgedec.autocomplete.config import AutocompleteConfig
from edgedec.autocomplete.document import Document
from edgedec.autocomplete.learned import LearnedOffers
from edgedec.autocomplete.offer import Offer, TypingCounts

__all__ = [
    "AutocompleteConfig",
    "Autocompleter",
    "Document",
    "LearnedOffers",
    "Offer",
    "OnOffer",
    "TypingCounts",
]
