"""Whose prompts a request may begin like: how soon an answer comes tells what was asked before."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar

PREFIX_GROUP: ContextVar[str] = ContextVar("prefix_group", default="")
"""The group of the request that is being answered, see `GenerationConfig`."""


def group_of(key: str) -> str:
    """Returns the group of all who come with ``key``, which nobody can tell the key from."""
    return hashlib.sha256(b"edgedec prefix group\0" + key.encode()).hexdigest()[:32]
