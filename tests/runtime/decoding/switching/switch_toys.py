"""Two toy models that mostly agree, and a plain account of what switching should do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.switching.switching import Switching
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.sampling.token_mask import TokenMask
from edgedec.runtime.text.token_map import TokenMap

from ...conftest import OnePool, ToySession
from ...draft_toys import PROMPT, VOCAB, StatsSession, generate

Row = npt.NDArray[np.float32]
SETTINGS = [
    "ead:threshold=2.0,window=3,dwell=2",
    "ead:threshold=2.2,window=4,dwell=4,hysteresis=0.9",
    "ead:threshold=2.0,window=4,dwell=1,reset_window=true",
    "margin:threshold=0.5,window=2,dwell=1",
    "bild:fallback=0.5",
]
GREEDY = GenerationConfig(max_new_tokens=60)


def rule(vocab_size: int, noise: float) -> Callable[[Sequence[int]], Row]:
    """Returns logits that all toys share, plus ``noise`` of the draft model's own."""

    def row(prefix: Sequence[int]) -> Row:
        shared, own = _drawn(len(prefix), *prefix[-3:]), _drawn(7, len(prefix), *prefix[-3:])
        return (4 * shared + noise * own)[:vocab_size].astype(np.float32)

    return row


@lru_cache(1 << 14)
def _drawn(*seed: int) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(VOCAB)


def target_toy(context: int = 256, kind: type[ToySession] = ToySession) -> ToySession:
    return kind(VOCAB, context, rule(VOCAB, 0.0))


def draft_toy(
    context: int = 256,
    vocab_size: int = VOCAB,
    kind: type[ToySession] = StatsSession,
    noise: float = 2.0,
) -> ToySession:
    return kind(vocab_size, context, rule(vocab_size, noise))


def role_of(draft: ToySession) -> DraftRole:
    """Returns the role of a draft model that has one sequence."""
    return DraftRole(OnePool(draft), TokenMap.same(VOCAB, draft.vocab_size), VOCAB)


def switched(
    setting: str | SwitchConfig,
    config: GenerationConfig,
    target: ToySession | None = None,
    draft: ToySession | None = None,
    mask: TokenMask | None = None,
    **others: Any,
) -> tuple[GenerationResult, ToySession, ToySession]:
    """Returns an output of switching and both sessions, rewound as they must be."""
    target, draft = target or target_toy(), draft or draft_toy()
    parsed = SwitchConfig.parse(setting) if isinstance(setting, str) else setting
    strategy = Switching(role_of(draft), parsed, size_ratio=0.25, **others)
    result = generate(target, PROMPT, config, strategy, mask)
    check_account(result)
    text = [*PROMPT, *result.token_ids]
    for session in (target, draft):
        assert list(session.tokens) == text[: session.n_tokens]
    return result, target, draft


def check_account(result: GenerationResult) -> None:
    """Asserts that all reports of an output agree with its tags."""
    reported, tags = result.switch, list(result.origins)
    assert set(tags) <= {"draft", "target"}
    assert (reported["n_draft"], reported["n_target"]) == (
        tags.count("draft"),
        tags.count("target"),
    )
    assert reported["share_target"] == tags.count("target") / len(tags)
    assert reported["cost_paper"] == reported["share_target"] + 0.25 * (
        1 - reported["share_target"]
    )
    changes = [i for i in range(1, len(tags)) if tags[i] != tags[i - 1]]
    assert [entry["position"] for entry in reported["log"]] == changes
    assert reported["n_switches"] == len(changes)
    assert reported["first"] == tags[0]
    assert reported["policy_ms"] > 0
    assert 0 <= reported["n_copied"] <= len(tags)
    for passes in reported["passes"].values():
        assert (passes["step_ms"] > 0) == (passes["n_steps"] > 0)
        assert (passes["catch_up_ms"] > 0) == (passes["n_catch_ups"] > 0)
        assert passes["n_caught_up"] >= passes["n_catch_ups"]
    assert result.stats.draft_ms >= 0
    assert result.stats.verify_ms >= 0
    for entry in reported["log"]:
        assert (entry["from"], entry["to"]) == tuple(tags[entry["position"] - 1 :][:2])
        assert entry["gap"] >= 0
        assert entry["catch_up_ms"] >= 0
