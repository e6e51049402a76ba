"""Every name by which people choose how to decode has a figure in the documentation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from edgedec.apps.run.tries import Choose
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.config.switching import MODES, POLICIES
from edgedec.runtime.config.unmasking import UNMASK_RULES
from edgedec.runtime.decoding.verifiers import verifier_names
from edgedec.runtime.drafting.drafters import drafter_names
from edgedec.runtime.methods.method_parts import AUTO, PLAIN

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "methods.md"
SETTINGS_OF_STEPS = {
    "temperature_last", "xtc_threshold", "dry_base", "dry_allowed_length", "dry_sequence_breakers",
    "mirostat_tau", "mirostat_eta",
}  # fmt: skip
"""Fields that say how a step works; the step has a row."""
SAMPLERS = {field.name for field in dataclasses.fields(SamplingConfig)} - SETTINGS_OF_STEPS
NAMES: dict[str, Iterable[str]] = {
    "--method": (AUTO, PLAIN, *drafter_names()),
    "--switch": POLICIES,
    "--switch-mode": MODES,
    "--verifier": verifier_names(),
    "sampling": SAMPLERS,
    "--choose": Choose,
    "--unmask": UNMASK_RULES,
}


@pytest.mark.parametrize("option", NAMES)
def test_every_name_has_a_figure(option: str) -> None:
    row = re.compile(rf"^\| `{option} (\S+)` \|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)
    rows = {name: (figure, link) for name, figure, _, link in row.findall(PAGE.read_text())}
    assert rows.keys() == set(NAMES[option])
    assert [name for name, (figure, _) in rows.items() if not re.search(r"\d", figure)] == []
    assert [name for name, (_, link) in rows.items() if "](" not in link] == []
