"""Whoever refuses a text for its length names the option that changes it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("apps", "autocomplete", "export", "models", "runtime", "targets", "training")
_STATES_CONTEXT = re.compile(r"context (is |of )?\{|exported for \{|\bcontext\}|context has \{")


def test_refusals_for_length_name_the_option() -> None:
    """Texts of errors that state a context, and what is written behind them."""
    missing = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            lines = path.read_text(encoding="utf-8").splitlines()
            for i, line in enumerate(lines):
                behind = "\n".join(lines[i : i + 6])
                before = "\n".join(lines[max(0, i - 4) : i])
                is_refusal = _STATES_CONTEXT.search(line) and re.search(r"raise \w+Error\(", before)
                if is_refusal and not re.search("--context|LARGER_CONTEXT", behind):
                    missing.append(f"{path.relative_to(ROOT)}:{i + 1}: {line.strip()}")
    assert missing == []
