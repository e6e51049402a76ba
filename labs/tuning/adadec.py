"""The threshold of adadec, learned from prompts with right answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.labs.methods.pause_threshold import learn_threshold
from edgedec.models.errors import ConfigError
from edgedec.runtime.config.switching import ADADEC, SwitchConfig
from edgedec.runtime.decoding.switching.predictions import predictions
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.prompt_files import labels_of
from edgedec.runtime.text.common_prefix import common_prefix

_PROMPT_KEYS = ("prompt", "question")
_ANSWER_KEYS = ("canonical_solution", "answer")
_FORM = '{"prompt": ..., "canonical_solution": ...} (or question and answer)'


@dataclass(frozen=True)
class Reference:
    """A prompt and what is right after it. name: file and line."""

    name: str
    prompt: str
    answer: str

    def encode(self, engine: Engine, is_chat: bool) -> tuple[list[int], int]:
        """Returns the tokens of both, and how many are the prompt's."""
        if is_chat:
            ids = engine.encode([{"role": "user", "content": self.prompt.rstrip("\n")}])
            return [*ids, *engine.tokenizer.encode(self.answer)], len(ids)
        ids = engine.encode(self.prompt + self.answer)
        return ids, max(1, common_prefix(engine.encode(self.prompt), ids))


@dataclass(frozen=True)
class Learned:
    """evidence: what the threshold rests on, JSON-ready."""

    setting: SwitchConfig
    evidence: dict[str, Any]
    is_interrupted: bool


def read_references(paths: Sequence[Path]) -> list[Reference]:
    """Returns the references of the files.

    Raises:
        ConfigError: A file cannot be read, or a line is none of these.
    """
    found: list[Reference] = []
    for path, label in zip(paths, labels_of(paths), strict=True):
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read references from {path}: {error}") from None
        found += [_read(line, f"{label}:{i + 1}") for i, line in enumerate(lines) if line.strip()]
    return found


def learn(
    engine: Engine,
    references: Sequence[Reference],
    is_chat: bool,
    known: dict[str, list[tuple[float, bool]]],
    save: Callable[[], None],
    deadline_s: float,
    report: Callable[[str, int, int], None],
) -> Learned:
    """Returns the threshold that the references teach, as many as time allows.

    known: entropy at each position of a right text, and whether the likeliest token was its; by
    reference. What is found is added, and ``save`` called.
    """
    is_interrupted, sequence = False, engine.new_sequence()
    try:
        for i, reference in enumerate(references):
            report("read answers", i, len(references))
            if reference.name in known:
                continue
            if time.monotonic() > deadline_s:
                break
            text, n_prompt = reference.encode(engine, is_chat)
            if len(text) <= engine.context:
                says = predictions(sequence, text, n_prompt)
                known[reference.name] = [
                    (round(prediction.signal.entropy, 6), prediction.token == token)
                    for prediction, token in zip(says, text[n_prompt:], strict=True)
                ]
                save()
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        sequence.close()
    positions = [position for found in known.values() for position in found]
    entropies = np.array([entropy for entropy, _ in positions], np.float64)
    is_right = np.array([right for _, right in positions], np.bool_)
    threshold = round(learn_threshold(entropies, is_right), 4)
    above = entropies >= threshold
    evidence = {
        "n_texts": len(known),
        "n_positions": len(positions),
        "share_paused": float(above.mean()),
        "right_where_paused": float(is_right[above].mean()) if above.any() else None,
        "right_elsewhere": float(is_right[~above].mean()) if (~above).any() else None,
    }
    return Learned(SwitchConfig(policy=ADADEC, threshold=threshold), evidence, is_interrupted)


def _read(line: str, place: str) -> Reference:
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not valid JSON ({error}), expected {_FORM}") from None
    prompt, answer = (_first(fields, keys) for keys in (_PROMPT_KEYS, _ANSWER_KEYS))
    if prompt is None or answer is None:
        raise ConfigError(f"{place}: no prompt with an answer, expected {_FORM}")
    return Reference(place, prompt, answer)


def _first(fields: Any, keys: Sequence[str]) -> str | None:
    values = [fields.get(key) for key in keys] if isinstance(fields, dict) else []
    return next((value for value in values if isinstance(value, str) and value), None)
