"""Grammars in llama.cpp's notation, GBNF, as those that llguidance reads."""

from __future__ import annotations

import re

from edgedec.models.errors import ConfigError

_RULE = re.compile(r"^\s*[A-Za-z][A-Za-z0-9_-]*\s*::=", re.MULTILINE)


def lark_grammar(text: str) -> str:
    """Returns ``text``, or the Lark grammar of the same texts if it is in GBNF.

    Raises:
        ConfigError: It looks like GBNF and is none.
    """
    if not _RULE.search(text):
        return text
    try:
        from llguidance.gbnf_to_lark import gbnf_to_lark
    except ImportError:
        return text  # who compiles it says what to install
    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # a parser of another's: it raises whatever it likes
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(f"grammar is no valid GBNF: {reason}") from None
