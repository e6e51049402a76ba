"""One moment at which an edit may follow, replayed against a model that predicts edits."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from edgedec.apps.bench.edit_sources import EditCase
from edgedec.apps.bench.edit_verdicts import Verdict, judge
from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits import EditAnswer, EditConfig, EditPredictor
from edgedec.runtime.engine.engine import Engine


@dataclass(frozen=True)
class WindowResult:
    """What a model made of one window.

    probability, verdict: of its edit; None if it made none. ms: from the key to the edit, or to
    the end of the answer. text_sha256: of the answer.
    """

    probability: float | None
    verdict: Verdict | None
    ms: float
    n_prompt_tokens: int
    n_read_tokens: int
    n_new_tokens: int
    n_passes: int
    text_sha256: str


@dataclass(frozen=True)
class EditRow:
    """What became of one case under one method. windows: in the order they were looked at.

    group: cases of one commit have the same, a hexadecimal number.
    """

    fingerprint: str
    key: str
    name: str
    group: str
    method: str
    follows: bool
    windows: tuple[WindowResult, ...]

    def shown(self, bound: float) -> WindowResult | None:
        """Returns the window whose edit is shown, if edits below ``bound`` are not."""
        for window in self.windows:
            if window.probability is not None and window.probability >= bound:
                return window
        return None

    def verdict(self, bound: float) -> Verdict | None:
        """Returns what is shown is worth; None for silence. Where nothing follows, it is wrong."""
        window = self.shown(bound)
        return None if window is None else window.verdict

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the row of ``fields``; TypeError, KeyError or ValueError if it is none."""
        windows = tuple(
            WindowResult(**{**window, "verdict": window["verdict"] and Verdict(window["verdict"])})
            for window in fields["windows"]
        )
        return cls(**{**fields, "windows": windows})


def replay(engine: Engine, config: EditConfig, case: EditCase, fingerprint: str) -> EditRow:
    """Returns what is predicted after the last key of a case.

    The model has read what was there before this key. No edit is likely enough to end the search,
    so that each window is looked at.
    """
    engine.forget_prompts()
    with EditPredictor(engine, dataclasses.replace(config, min_probability=1.0)) as predictor:
        for path, text in case.earlier:
            predictor.see(Document(text, 0, path))
        predictor.update(Document(*case.before_key, case.path)).result()
        predictor.answers.clear()
        predictor.update(Document(*case.now, case.path)).result()
        windows = tuple(_result(answer, case) for answer in predictor.answers)
    return EditRow(
        fingerprint, case.key, case.name, case.group, config.method, case.follows, windows
    )


def _result(answer: EditAnswer, case: EditCase) -> WindowResult:
    edit = answer.edit
    return WindowResult(
        None if edit is None else edit.probability,
        None if edit is None else judge(edit, case.now[0], case.after),
        answer.ms if edit is None else edit.ms,
        answer.n_prompt_tokens,
        answer.n_read_tokens,
        answer.n_new_tokens,
        answer.n_passes,
        hashlib.sha256(answer.text.encode()).hexdigest()[:16],
    )
