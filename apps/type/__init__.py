"""Suggestions in every window: `edgedec type`.

`suggestions.py` decides, for any system, through the protocols of `text_place.py`. A system is a
folder: `ibus/` reads keys and text on Linux, `x11/` shows what is on offer.
"""
