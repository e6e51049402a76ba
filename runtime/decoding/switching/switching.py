"""Two models take turns at one text.

`trust` emits what the draft model says at once. Emitted text cannot be taken back, so in `repair`
and `verify` the draft model's tokens wait until the target model has judged them. It does when it
takes over, or after `max_run` of them: its pass over the tokens it missed says what it thinks of
each. Whether the text ends is then always for the target model to say.

Where the text repeats itself, a model reads several tokens in one pass and keeps those it says
itself. The policy sees each as if it had come alone, so the text does not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgedec.models.errors import ConfigError
from edgedec.runtime.config.switching import REPAIR, TRUST, SwitchConfig
from edgedec.runtime.decoding.strategy import DecodeState, Decoding, DecodingStrategy, StepResult
from edgedec.runtime.decoding.switching.lookup_chains import LookupChains
from edgedec.runtime.decoding.switching.paired_model import CatchUp, PairedModel
from edgedec.runtime.decoding.switching.policy import ModelRole, Signal, SwitchPolicy, make_policy
from edgedec.runtime.decoding.switching.rollback import judge, not_unlikely
from edgedec.runtime.decoding.switching.switch_log import Doubt, SwitchLog
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import DraftPrompt
from edgedec.runtime.drafting.drafters.lookup import PromptLookup
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import HiddenStates, caught_up
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence


class Switching(DecodingStrategy):
    """Decodes with a draft and a target model, which take turns."""

    takes_turns = True

    def __init__(
        self,
        draft: DraftRole,
        setting: SwitchConfig,
        new_policy: Callable[[], SwitchPolicy] | None = None,
        size_ratio: float | None = None,
        copies: bool = True,
    ) -> None:
        """draft: knows the target model's tokens.

        Args:
            new_policy: Makes what decides in place of the one that ``setting`` names.
            size_ratio: Parameters of the draft model per parameter of the target model, if known.
            copies: Look up in the text what the models may say next.
        """
        self.name = setting.policy
        self.is_lossless = setting.is_lossless
        self.draft = draft
        self.setting = setting
        self.size_ratio = size_ratio
        self._new_policy = new_policy or (lambda: make_policy(setting))
        self.forgives = not_unlikely(setting.rollback) if setting.mode == REPAIR else None
        self._lookup = PromptLookup() if copies else None

    def begin(self, state: DecodeState, hidden: HiddenStates) -> SwitchedDecoding:
        """Returns the part of a request. The draft model sees the prompt when it is first asked.

        Raises:
            ConfigError: The prompt holds tokens that the draft model does not know.
        """
        n_ids = self.draft.pool.model.vocab_size
        if (largest := max(state.tokens)) >= n_ids:
            raise ConfigError(
                f"the prompt holds token {largest}, expected 0 to {n_ids - 1}, "
                "the ids of the draft model's vocabulary"
            )
        prompt = DraftPrompt(state.tokens)
        chains = None if self._lookup is None else LookupChains(self._lookup.begin(prompt))
        return SwitchedDecoding(self, state, self._new_policy(), chains)


class SwitchedDecoding(Decoding):
    """One request that two models take turns at."""

    def __init__(
        self,
        method: Switching,
        state: DecodeState,
        policy: SwitchPolicy,
        chains: LookupChains | None,
    ) -> None:
        self._method = method
        self._setting = method.setting
        self._state = state
        self._policy = policy
        self._chains = chains
        self._draft = method.draft.take(state.tokens, state.config.prefix_group)
        self._models = {
            ModelRole.DRAFT: PairedModel(self._draft, state.n_prompt),
            ModelRole.TARGET: PairedModel(state.sequence, state.n_prompt),
        }
        self._log = SwitchLog()
        self._active = policy.begin()
        self._doubt = Doubt()
        self._is_discarded = False
        self._policy_s = 0.0  # deciding and tagging
        self._n_copied = 0

    def step(self, noise: Noise) -> Passes[StepResult]:
        """Returns the next token; a run of the draft model, where that is judged."""
        if self._setting.mode == TRUST:
            return (yield from self._trust(noise))
        return (yield from self._run_and_judge(noise))

    def end(self) -> None:
        state = self._state
        n_emitted, tags = len(state.tokens) - state.n_prompt, self._log.tags
        if (
            tags and tags[-1] is ModelRole.DRAFT
        ):  # what was discarded is of no pass of the target model
            state.stats.n_pass_tokens += len(tags) - n_emitted
        self._log.cut(n_emitted)
        for model in self._models.values():
            model.rewind(state.tokens)
        if self._chains is not None:
            self._chains.end(state.tokens)
        self._method.draft.pool.give_back(self._draft)

    def catch_up(self, target: TokenSequence) -> Passes[int]:
        """Has both models compute what they missed, so that whoever is asked next need not."""
        pool, tokens = self._method.draft.pool, self._state.tokens
        draft = pool.take(tokens, self._state.config.prefix_group)
        try:
            n_of_draft = yield from caught_up(draft, tokens)
        finally:
            pool.give_back(draft)
        return n_of_draft + (yield from caught_up(target, tokens))

    def summary(self) -> dict[str, Any]:
        """Returns what happened in the latest output, JSON-ready; see `SwitchLog.summary`.

        policy_ms: spent on reading off doubt, deciding and tagging, between the passes. n_copied:
        tokens that were looked up in the text before a model said them.
        """
        counts = {m: self._models[m].counts for m in ModelRole}
        return {
            "setting": self._setting.to_dict(),
            "policy_ms": 1000 * self._policy_s,
            "n_copied": self._n_copied,
            **self._log.summary(
                counts[ModelRole.DRAFT], counts[ModelRole.TARGET], self._method.size_ratio
            ),
        }

    def explain(self) -> list[str]:
        """Returns what happened in the latest output, in words."""
        explained = self.summary()
        lines = [
            f"{self._setting}: {explained['n_target']} tokens from the target model, "
            f"{explained['n_draft']} from the draft model, {explained['n_switches']} switches"
        ]
        for name, counts in explained["passes"].items():
            lines.append(
                f"{name} model: {counts['n_steps']} steps in {counts['step_ms']:.0f} ms, "
                f"{counts['n_catch_ups']} passes over {counts['n_caught_up']} missed tokens in "
                f"{counts['catch_up_ms']:.0f} ms, the prompt in {counts['prompt_ms']:.0f} ms"
            )
        return [
            *lines,
            f"deciding and tagging: {explained['policy_ms']:.1f} ms; {explained['n_copied']} "
            "tokens were looked up in the text",
        ]

    def _trust(self, noise: Noise) -> Passes[StepResult]:
        """Returns the next token, of whichever model is to give it."""
        state = self._state
        if self._active is ModelRole.DRAFT and (n_may := self._n_draft_may()) > 0:
            words = yield from self._say(noise, (), min(n_may, state.n_left))
            if words:
                state.take_rows()  # of the target model, which was not asked
                return self._tagged(ModelRole.DRAFT, words, self._models[ModelRole.DRAFT].latest)
        return (yield from self._ask_target(noise))

    def _run_and_judge(self, noise: Noise) -> Passes[StepResult]:
        """Returns what the target model leaves of the draft's run, and its own next token."""
        state = self._state
        if state.rows is not None:
            return (yield from self._ask_target(noise))
        run = yield from self._run(noise)
        if not len(run.tree):
            return (yield from self._ask_target(noise))
        pending = [node.token for node in run.tree.nodes]
        doubt, target = self._doubt, self._models[ModelRole.TARGET]
        forgives = self._method.forgives
        text, with_logits = [*state.tokens, *pending], forgives is not None or state.needs_logits
        rows = yield from target.rows_after(text, len(pending) + 1, with_logits)
        n_kept, token = judge(state, rows, pending, noise, forgives)
        self._observe(ModelRole.TARGET, rows, n_kept)
        self._rewind(len(state.tokens) + n_kept)
        self._count_run(run, n_kept)
        self._tag(ModelRole.TARGET, doubt, target.latest)
        return StepResult(
            (*pending[:n_kept], token), (*[ModelRole.DRAFT] * n_kept, ModelRole.TARGET)
        )

    def _ask_target(self, noise: Noise) -> Passes[StepResult]:
        """Returns the target model's next token, after those looked up that are its own."""
        state = self._state
        target, catch_up = self._models[ModelRole.TARGET], CatchUp()
        rows, copied = state.take_rows(), list[int]()  # prefill left the row of the prompt
        is_prefilled = rows is not None
        if rows is None:
            # It hands back as soon as it may, mostly: after one token, or after the dwell.
            n_turn = 1 if self._policy.discards else self._setting.dwell
            copied = self._looked_up(noise, target.sequence, min(n_turn, state.n_left) - 1)
            text, n_copied = [*state.tokens, *copied], len(copied)
            rows = yield from target.rows_after(text, 1 + n_copied, state.needs_logits, n_copied)
            catch_up = target.latest
        words = self._words(noise, ModelRole.TARGET, rows, copied)
        state.stats.n_passes += not is_prefilled
        state.stats.n_pass_tokens += 0 if is_prefilled else len(words)
        state.stats.n_copied += len(words) - 1
        return self._tagged(ModelRole.TARGET, words, catch_up)

    def _run(self, noise: Noise) -> Passes[_Run]:
        """Returns what the draft model says, as far as policy, request and contexts allow."""
        state, draft = self._state, self._models[ModelRole.DRAFT]
        run, text = _Run(self._doubt), list(state.tokens)
        limit = min(self._setting.max_run, state.n_left - 1, self._n_draft_may())
        while self._active is ModelRole.DRAFT and len(run.tree) < limit:
            pending = text[len(state.tokens) :]
            words = yield from self._say(noise, pending, limit - len(run.tree))
            if not len(run.tree):
                run.catch_up = draft.latest
            run.ms += draft.latest.ms
            for word in words:
                if word.token in state.stop_token_ids:
                    self._log.n_dropped += 1
                    return run
                run.tree.add(word.token, len(run.tree) - 1, word.probability, ModelRole.DRAFT)
                text.append(word.token)
            if not words:
                break
        return run

    def _say(self, noise: Noise, pending: Sequence[int], limit: int) -> Passes[list[_Word]]:
        """Returns up to ``limit`` tokens that one pass of the draft model gives after ``pending``.

        One, and before it those that were looked up and are its own; none where its prediction is
        dropped.
        """
        copied = [] if pending else self._looked_up(noise, self._draft, limit - 1)
        text = [*self._state.tokens, *pending, *copied]
        rows = yield from self._draft_rows(text, len(copied))
        return self._words(noise, ModelRole.DRAFT, rows, copied, pending)

    def _words(
        self,
        noise: Noise,
        model: ModelRole,
        rows: Rows,
        copied: Sequence[int],
        pending: Sequence[int] = (),
    ) -> list[_Word]:
        """Returns what ``model`` says after ``pending``, up to where it is not what was looked up.

        rows: after ``pending``, and after each of ``copied``.
        """
        state, words = self._state, list[_Word]()
        for i, expected in enumerate([*copied, None]):
            doubt = self._doubt
            probability = self._observe(model, rows, i).top_prob
            if self._is_discarded:
                self._log.n_dropped += 1
                break
            path = [*pending, *(word.token for word in words)]
            words.append(_Word(state.pick_from(rows, i, noise, path), probability, doubt))
            is_at_end = words[-1].token in state.stop_token_ids
            if words[-1].token != expected or self._active is not model or is_at_end:
                break
        self._n_copied += sum(w.token == t for w, t in zip(words, copied, strict=False))
        if self._chains is not None and not pending:
            self._chains.learn([word.token for word in words], rows)
        return words

    def _looked_up(self, noise: Noise, sequence: TokenSequence, limit: int) -> list[int]:
        """Returns tokens that the model of ``sequence`` may say next."""
        state = self._state
        if self._chains is None:
            return []
        room = sequence.context - len(state.tokens)
        started_s = time.perf_counter()
        chain = self._chains.propose(state, noise, min(limit, room), sequence.vocab_size)
        state.stats.draft_ms += 1000 * (time.perf_counter() - started_s)
        return chain

    def _tagged(self, model: ModelRole, words: Sequence[_Word], catch_up: CatchUp) -> StepResult:
        """Returns a step of ``words``, noted in the log."""
        for word in words:
            self._tag(model, word.doubt, catch_up)
        return StepResult(tuple(word.token for word in words), (model,) * len(words))

    def _count_run(self, run: _Run, n_kept: int) -> None:
        state, n_run = self._state, len(run.tree)
        evaluated = range(min(n_kept + 1, n_run))
        state.stats.count_pass(run.tree, evaluated, range(n_kept), n_kept == n_run)
        state.stats.draft_ms += run.ms
        state.stats.verify_ms += self._models[ModelRole.TARGET].latest.ms
        self._log.n_dropped += n_run - n_kept
        for _ in range(n_kept):
            self._tag(ModelRole.DRAFT, run.doubt, run.catch_up)

    def _draft_rows(self, text: Sequence[int], n_drafted: int) -> Passes[Rows]:
        """Returns the draft model's rows after ``text`` without its drafts, and after each."""
        draft, needs_logits = self._models[ModelRole.DRAFT], self._state.needs_logits
        rows = yield from draft.rows_after(text, 1 + n_drafted, needs_logits, n_drafted)
        return widened(rows, self._state.sequence.vocab_size)

    def _n_draft_may(self) -> int:
        """Returns how many tokens the draft model's context lets it say yet."""
        return self._draft.context - len(self._state.tokens) + 1

    def _observe(self, model: ModelRole, rows: Rows, index: int) -> Signal:
        """Tells the policy of a prediction; the model to go on with is active then."""
        started_s = time.perf_counter()
        signal = Signal.of(rows.stats, index)
        self._active = self._policy.observe(model, signal)
        self._is_discarded = (
            model is ModelRole.DRAFT and self._active is ModelRole.TARGET and self._policy.discards
        )
        self._doubt = Doubt(signal.entropy, self._policy.level)
        self._policy_s += time.perf_counter() - started_s
        return signal

    def _tag(self, model: ModelRole, doubt: Doubt, catch_up: CatchUp) -> None:
        started_s = time.perf_counter()
        self._log.add(model, doubt, catch_up)
        self._policy_s += time.perf_counter() - started_s

    def _rewind(self, n_tokens: int) -> None:
        for model in self._models.values():
            model.sequence.rewind(min(model.sequence.n_tokens, n_tokens))


@dataclass(frozen=True, slots=True)
class _Word:
    """A token a model says. doubt: before it. probability: of its likeliest token."""

    token: int
    probability: float
    doubt: Doubt


@dataclass
class _Run:
    """Tokens of the draft model that wait for judgement, a chain.

    doubt, catch_up: as before its first token. ms: of all its passes.
    """

    doubt: Doubt
    tree: DraftTree = field(default_factory=DraftTree)
    catch_up: CatchUp = field(default_factory=CatchUp)
    ms: float = 0.0


def widened(rows: Rows, n_ids: int) -> Rows:
    """Returns ``rows`` with logits for ``n_ids`` tokens; those the model does not know are -inf.

    Models with one tokenizer may pad their vocabularies differently.

    Shapes: logits [R, V] -> [R, n_ids].
    """
    n_missing = n_ids - rows.logits.shape[1]
    if n_missing <= 0 or not len(rows.logits):
        return rows
    logits = np.pad(rows.logits, ((0, 0), (0, n_missing)), constant_values=-np.inf)
    return Rows(logits, rows.hidden, rows.stats, rows.ms)
