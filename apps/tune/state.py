"""What tuning has found so far, in a file, so that the next run goes on from there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from edgedec.apps.tune.catch_up import CatchUpCost
from edgedec.apps.tune.traces import Trace
from edgedec.models.errors import ConfigError
from edgedec.system.files import replace_json


@dataclass(frozen=True)
class MeasuredRun:
    """What a real run of one setting did with one prompt.

    ms: from the first token to the last. n_chosen: tokens that the target model would have chosen,
    given the text before each.
    """

    n_tokens: int
    ms: float
    n_target: int
    n_chosen: int


Round = dict[str, MeasuredRun]
"""Runs of all contestants on one prompt, one after the other, by name."""


@dataclass
class TuneState:
    """Traces, rounds and what references gave, by prompt. path: where it is kept.

    catch_up: what a switch costs, None where it is not known.
    references: entropy at each position of a right text, and whether the likeliest token was its.
    """

    path: Path
    costs: dict[str, dict[int, float]] = field(default_factory=dict)
    catch_up: CatchUpCost | None = None
    traces: dict[str, Trace] = field(default_factory=dict)
    rounds: dict[str, Round] = field(default_factory=dict)
    references: dict[str, list[tuple[float, bool]]] = field(default_factory=dict)

    @classmethod
    def open(cls, identity: str, is_fresh: bool) -> TuneState:
        """Returns what is known of ``identity``: models, device, prompts; nothing if unreadable."""
        path = Path(platformdirs.user_cache_dir("edgedec")) / "tune" / f"{identity}.json"
        state = cls(path)
        if is_fresh:
            return state
        try:
            state._read(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls(path)
        return state

    def save(self) -> None:
        """Writes everything; an older file is replaced when all of the new one is written.

        Raises:
            ConfigError: It cannot be written.
        """
        document = {
            "costs": self.costs,
            "catch_up": None if self.catch_up is None else asdict(self.catch_up),
            "traces": {name: trace.to_dict() for name, trace in self.traces.items()},
            "rounds": {
                name: {setting: asdict(run) for setting, run in measured.items()}
                for name, measured in self.rounds.items()
            },
            "references": self.references,
        }
        try:
            replace_json(self.path, document)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror or error}") from None

    def complete_rounds(self, names: set[str]) -> list[Round]:
        """Returns the rounds in which all of ``names`` took part."""
        return [measured for measured in self.rounds.values() if names <= measured.keys()]

    def _read(self, document: dict[str, Any]) -> None:
        self.costs = {
            name: {int(m): float(ms) for m, ms in table.items()}
            for name, table in document["costs"].items()
        }
        catch_up = document["catch_up"]
        self.catch_up = None if catch_up is None else CatchUpCost(**catch_up)
        self.traces = {name: Trace.from_dict(fields) for name, fields in document["traces"].items()}
        self.rounds = {
            name: {setting: MeasuredRun(**fields) for setting, fields in measured.items()}
            for name, measured in document["rounds"].items()
        }
        self.references = {
            name: [(float(entropy), bool(is_right)) for entropy, is_right in positions]
            for name, positions in document["references"].items()
        }
