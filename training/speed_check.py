"""Measures what a trained drafter saves, on texts that it was not trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.training.features.feature_file import TextFeatures

_N_PIECES = 6
_PIECE = 128
"""Tokens of a piece. The model reads the first half of one, and goes on."""

_N_NEW = 32
"""Tokens that it writes."""

_FEWEST = 3
"""Pieces that a verdict needs."""

_BUDGET_S = 20.0
"""No piece begins later than this after the first."""

_CLEAR = 1.03
"""A ratio that other work on the machine seldom makes."""


@dataclass(frozen=True)
class Speeds:
    """Tokens per second of ``auto``, one number per piece: those with the trained drafter first."""

    after: tuple[float, ...]
    before: tuple[float, ...]
    plain: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """How many times as fast as before, the median of the pieces' ratios."""
        return median(a / b for a, b in zip(self.after, self.before, strict=True))

    @property
    def outcome(self) -> str:
        """``faster`` or ``slower``, if three quarters of the pieces say so, too; else ``same``."""
        n_faster = sum(a > b for a, b in zip(self.after, self.before, strict=True))
        n = len(self.after)
        if self.ratio > _CLEAR and n_faster >= 0.75 * n:
            return "faster"
        return "slower" if self.ratio < 1 / _CLEAR and n_faster <= 0.25 * n else "same"

    def to_dict(self) -> dict[str, object]:
        """Returns JSON-ready fields. Units: tokens per second, medians."""
        return {
            "n_texts": len(self.after),
            "after": round(median(self.after), 2),
            "before": round(median(self.before), 2),
            "plain": round(median(self.plain), 2),
            "ratio": round(self.ratio, 3),
            "outcome": self.outcome,
        }

    def text(self, bundle: Path) -> str:
        """Returns the verdict for people. bundle: what training began with."""
        n, after = len(self.after), f"{median(self.after):.1f} tokens/s"
        before, plain = f"{median(self.before):.1f}", f"{median(self.plain):.1f}"
        if self.outcome == "faster":
            verdict = f"{self.ratio:.2f} times as fast as before"
        elif self.outcome == "slower":
            verdict = f"slower, {self.ratio:.2f} times the speed of before"
        else:
            verdict = f"no clear difference, {self.ratio:.2f} times the speed of before"
        advice = ""
        if self.outcome != "faster":
            advice = (
                f". {bundle} is as it was: go on with it, or train for longer, on texts like those "
                "that you have the model write"
            )
        return (
            f"verdict on {n} pieces of other texts: {verdict} ({after}, before {before}, without "
            f"any drafts {plain}){advice}"
        )


def measured_speeds(
    after: Path,
    before: Path,
    texts: Sequence[TextFeatures],
    threads: int,
    is_over: Callable[[], bool],
) -> Speeds | None:
    """Returns how fast two bundles of one model go on with ``texts``.

    None if that was stopped, or the texts are too short for a verdict. Both write after the same
    piece, one after the other, and take turns in going first.
    """
    prompts = _prompts(texts)
    speeds: list[tuple[float, float, float]] = []
    end_s = time.monotonic() + _BUDGET_S
    with ExitStack() as stack:
        options = EngineOptions(threads=threads)
        new, old = (stack.enter_context(load(path, options)) for path in (after, before))
        for i, tokens in enumerate(prompts):
            if is_over() or (speeds and time.monotonic() > end_s):
                break
            pairs = [(new, "auto"), (old, "auto"), (old, "plain")]
            order = pairs if i % 2 else pairs[::-1]
            rates = {(engine is new, name): _rate(engine, name, tokens) for engine, name in order}
            row = rates[True, "auto"], rates[False, "auto"], rates[False, "plain"]
            if i and all(row):  # the first piece teaches `auto` what passes cost
                speeds.append((row[0], row[1], row[2]))
    return Speeds(*zip(*speeds, strict=True)) if len(speeds) >= _FEWEST else None


def _prompts(texts: Sequence[TextFeatures]) -> list[list[int]]:
    """Returns first halves of pieces, of all texts in turn."""
    n_most = max((len(text.tokens) for text in texts), default=0)
    starts = range(0, n_most, _PIECE)
    pieces = [text.tokens[i : i + _PIECE] for i in starts for text in texts]
    halves = [piece[: len(piece) // 2].tolist() for piece in pieces]
    return [half for half in halves if half][: _N_PIECES + 1]


def _rate(engine: Engine, method: str, tokens: Sequence[int]) -> float:
    """Returns the tokens per second behind the first; 0 if the text had one token."""
    config = GenerationConfig(max_new_tokens=_N_NEW, method=method, ignore_eos=True)
    ms = engine.generate(tokens, config).tpot_ms
    return 1000.0 / ms if ms > 0 else 0.0
