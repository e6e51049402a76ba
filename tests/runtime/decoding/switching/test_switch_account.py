"""Reports of an output that two models wrote: each sum against its passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.switching import switching as module
from edgedec.runtime.decoding.switching.lookup_chains import LookupChains
from edgedec.runtime.decoding.switching.policy import ModelRole, RollingPolicy, Signal
from edgedec.runtime.decoding.switching.switching import Switching, widened
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.sequences import passes
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.text.token_map import TokenMap

from ...conftest import ToyModel, ToySession
from ...draft_toys import PROMPT, VOCAB, StatsSession, check_sums, generate, open_stream
from .switch_toys import GREEDY, SETTINGS, draft_toy, role_of, rule, switched, target_toy
from .test_switching import looping

MODES = ["trust", "repair", "verify"]
DRAFT_MS, TARGET_MS = 1000 / 64, 3000 / 64  # sums of such seconds are exact


class Clock:
    """Stands for the module `time`: each look at it is a second after the last."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def perf_counter(self) -> float:
        self._now_s += 1.0
        return self._now_s


class PassClock:
    """Stands for `time` while passes are computed: they take what they say, or 1/64 s."""

    def __init__(self) -> None:
        self._now_ms = self._seen_ms = 0.0

    def advance(self, ms: float) -> None:
        self._now_ms += ms

    def perf_counter(self) -> float:
        if self._now_ms == self._seen_ms:
            self.advance(1000 / 64)
        self._seen_ms = self._now_ms
        return self._now_ms / 1000


PASS_CLOCK = PassClock()


class Counting(RollingPolicy):
    """Counts its calls."""

    n_reported = 0

    def observe(self, model: ModelRole, signal: Signal) -> ModelRole:
        self.n_reported += 1
        return super().observe(model, signal)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Clock())
    monkeypatch.setattr(passes, "time", PASS_CLOCK)


class Timed(StatsSession):
    """A sequence whose passes take ``ms`` each, and which notes how many rows they computed."""

    def __init__(self, noise: float, ms: float, context: int = 200) -> None:
        super().__init__(VOCAB, context, looping(noise))
        self.widths: list[int] = []
        self.before_pass = lambda: PASS_CLOCK.advance(ms)

    def finish(self, wanted: Pass) -> None:
        super().finish(wanted)
        self.widths.append(len(wanted.tree) - wanted.n_known)


def reported_of(
    setting: str, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[GenerationResult, int, list[ToySession], int]:
    """Returns an output, how often its policy was called and the text looked up, and the models."""
    policy, n_looked = Counting(SwitchConfig.parse(setting)), 0
    propose = LookupChains.propose

    def counted(self: LookupChains, *others: Any) -> list[int]:
        nonlocal n_looked
        n_looked += 1
        return propose(self, *others)

    monkeypatch.setattr(LookupChains, "propose", counted)
    target, draft = Timed(0.0, TARGET_MS), Timed(2.0, DRAFT_MS)
    result, _, _ = switched(
        setting, GREEDY, target, draft, copies=copies, new_policy=lambda: policy
    )
    return result, policy.n_reported, [draft, target], n_looked


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setting", ["ead:threshold=inf", "ead:threshold=-1", SETTINGS[0]])
def test_times_are_those_of_what_was_done(
    setting: str, mode: str, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, n_reported, (draft, target), n_looked = reported_of(
        f"{setting},mode={mode}", copies, monkeypatch
    )
    assert result.switch["policy_ms"] == 1000 * (n_reported + len(result.token_ids))
    assert (n_looked > 0) == copies
    is_judged = mode != "trust"
    assert result.stats.draft_ms == 1000 * n_looked + is_judged * DRAFT_MS * draft.n_passes
    assert result.stats.verify_ms == TARGET_MS * result.stats.n_rounds
    passes = result.switch["passes"]
    for name, session, ms in (("draft", draft, DRAFT_MS), ("target", target, TARGET_MS)):
        reported_ms = sum(passes[name][part] for part in ("step_ms", "catch_up_ms", "prompt_ms"))
        is_prefilled = name == "target"  # by the request, which is none of the method's passes
        assert reported_ms == ms * (session.n_passes - is_prefilled)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_pass_of_the_draft_model_gives_a_word_that_is_kept_or_dropped(
    setting: str, mode: str
) -> None:
    result, _, draft = switched(f"{setting},mode={mode}", GREEDY, copies=False)
    assert draft.n_passes == result.switch["n_draft"] + result.switch["n_dropped"]
    assert result.switch["n_draft"] > 5
    if mode != "trust":  # there the draft model's words are of no pass of the target model
        check_sums(result)


@pytest.mark.parametrize("mode", ["repair", "verify"])
def test_a_run_ends_before_a_stop_token_which_the_target_model_has_to_say(mode: str) -> None:
    plain = generate(draft_toy(), PROMPT, GREEDY).token_ids
    config = GenerationConfig(max_new_tokens=60, stop_token_ids=(plain[4], plain[9]))
    result, _, draft = switched(f"ead:threshold=inf,mode={mode},max_run=30", config, copies=False)
    assert draft.n_passes == result.switch["n_draft"] + result.switch["n_dropped"]
    assert result.switch["n_dropped"] > 0


@pytest.mark.parametrize("dwell", [1, 2, 7])
def test_words_of_the_target_model_alone(dwell: int) -> None:
    target = ToySession(VOCAB, 200, looping(0.0))
    setting = f"ead:threshold=-1,dwell={dwell}"
    result, _, _ = switched(setting, GREEDY, target, StatsSession(VOCAB, 200, looping(2.0)))
    n_passes = target.n_passes - 1  # the prompt's gave the first word
    assert (result.stats.n_passes, result.stats.n_pass_tokens) == (n_passes, 59)
    assert result.stats.n_copied == result.switch["n_copied"] == 59 - n_passes
    assert (dwell == 1) == (result.stats.n_copied == 0)
    check_sums(result)


def test_words_that_were_looked_up_end_where_the_turn_the_text_or_the_context_does() -> None:
    longest = 0
    for context in (len(PROMPT) + 40, 200):
        for n in (11, 34, 60):
            target = Timed(0.0, TARGET_MS, context)
            config = GenerationConfig(max_new_tokens=n)
            draft = StatsSession(VOCAB, 200, looping(2.0))
            result, _, _ = switched("ead:threshold=-1,dwell=6", config, target, draft)
            assert max(target.widths[1:]) <= 6
            assert target.n_rows - len(PROMPT) <= min(n, context - len(PROMPT))
            longest = max(longest, *target.widths[1:])
            check_sums(result)
    assert longest == 6


def test_a_draft_sequence_is_given_back_when_the_output_ends() -> None:
    pool = SequencePool(ToyModel(VOCAB, rule(VOCAB, 2.0)), 256)
    role = DraftRole(pool, TokenMap.same(VOCAB, VOCAB), VOCAB)
    strategy = Switching(role, SwitchConfig.parse(SETTINGS[0]))
    stream = open_stream(target_toy(), PROMPT, GREEDY, strategy)
    list(stream)
    sequence = pool.take_idle()  # a new one if none had been given back
    assert sequence.n_tokens > len(PROMPT)
    assert stream.catch_up() > 0
    assert pool.take_idle() is sequence
    assert list(sequence.tokens) == [*PROMPT, *stream.result.token_ids]


def test_both_models_are_explained() -> None:
    stream = open_stream(
        target_toy(),
        PROMPT,
        GREEDY,
        Switching(role_of(draft_toy()), SwitchConfig.parse(SETTINGS[0])),
    )
    list(stream)
    passes = stream.result.switch["passes"]
    lines = stream.explain()
    for name, line in zip(("draft", "target"), lines[1:3], strict=True):
        assert line.startswith(f"{name} model: {passes[name]['n_steps']} steps in ")
        assert f"{passes[name]['n_catch_ups']} passes over {passes[name]['n_caught_up']}" in line
    assert lines[3].startswith(
        f"deciding and tagging: {stream.result.switch['policy_ms']:.1f} ms; "
    )


@pytest.mark.parametrize("n_rows", [0, 1, 3])
def test_what_a_model_does_not_know_it_never_says(n_rows: int) -> None:
    logits = np.random.default_rng(0).standard_normal((n_rows, 5)).astype(np.float32)
    rows = Rows(logits, ms=3.0)
    assert widened(rows, 5) is rows
    assert widened(rows, 4) is rows
    wide = widened(rows, 8)
    if n_rows == 0:
        assert wide is rows
        return
    np.testing.assert_array_equal(wide.logits[:, :5], logits)
    assert wide.logits.shape == (n_rows, 8)
    assert np.isneginf(wide.logits[:, 5:]).all()
    assert wide.ms == 3.0
    assert wide.stats is rows.stats


def test_the_draft_model_knows_every_token_of_the_prompt() -> None:
    draft = draft_toy(vocab_size=12)
    strategy = Switching(role_of(draft), SwitchConfig.parse("ead:threshold=inf"))
    config = GenerationConfig(max_new_tokens=2)
    assert len(generate(target_toy(), (3, 11, 1), config, strategy).token_ids) == 2
    with pytest.raises(ConfigError, match="the prompt holds token 12, expected 0 to 11"):
        generate(target_toy(), (3, 12, 1), config, strategy)
