"""Tiny checkpoints for every device."""

from __future__ import annotations

from ..export.conftest import *  # noqa: F403 (fixtures)
