"""Two models take turns at one text.

`trust` emits what the small model says at once. Emitted text cannot be taken back, so in `repair`
and `verify` the small model's tokens wait until the large one has judged them, which happens when
it takes over, or after `max_run` of them: its pass over the tokens it missed says what it thinks
of each. Whether the text ends is then always for the large model to say.

Where the text repeats itself, a model reads several tokens in one pass and keeps those it says
itself. The policy is told of each as if it had come alone, so the text does not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgedec.models.errors import ConfigError
from edgedec.runtime.config.switching import REPAIR, TRUST, SwitchConfig
from edgedec.runtime.decoding.strategy import DecodeState, StepResult
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sessions.session import ModelSession, Rows
from edgedec.runtime.switching.copying import Copying
from edgedec.runtime.switching.judge import judge
from edgedec.runtime.switching.paired_model import CatchUp, PairedModel, PassCounts
from edgedec.runtime.switching.policy import Model, Signal, SwitchPolicy, make_policy
from edgedec.runtime.switching.switch_log import Doubt, SwitchLog


class Switching:
    """Decodes with a small and a large model; the large one is the target model."""

    def __init__(
        self,
        small: ModelSession,
        setting: SwitchConfig,
        policy: SwitchPolicy | None = None,
        size_ratio: float | None = None,
        recall: Callable[[Sequence[int]], None] = lambda prompt: None,
        copies: bool = True,
    ) -> None:
        """Takes over ``small``, which `close` closes; it knows the target model's tokens.

        Args:
            policy: Decides in place of the one that ``setting`` names.
            size_ratio: Parameters of the small model per parameter of the large one, if known.
            recall: Called with a prompt; it may fill the small model's KV cache with a prefix.
            copies: Look up in the text what the models may say next.
        """
        self.name = setting.policy
        self.is_lossless = setting.is_lossless
        self._session = small
        self._setting = setting
        self._policy = policy or make_policy(setting)
        self._size_ratio = size_ratio
        self._recall = recall
        self._copying = Copying() if copies else None
        self._models: dict[Model, PairedModel] = {}
        self._log = SwitchLog()
        self._active = Model.SMALL
        self._doubt = Doubt()
        self._is_discarded = False
        self._policy_s = 0.0  # deciding and tagging
        self._n_copied = 0

    def begin(self, state: DecodeState) -> None:
        """Starts an output. The small model sees the prompt when it is first asked."""
        n_prompt = state.n_prompt
        self._models = {
            Model.SMALL: PairedModel(self._session, n_prompt),
            Model.LARGE: PairedModel(state.session, n_prompt),
        }
        self._log = SwitchLog()
        self._active = self._policy.begin()
        self._doubt = Doubt()
        self._policy_s = 0.0
        self._n_copied = 0
        if (largest := max(state.tokens)) >= self._session.vocab_size:
            raise ConfigError(
                f"the prompt holds token {largest}, expected 0 to {self._session.vocab_size - 1}, "
                "the ids of the small model's vocabulary"
            )
        self._recall(state.tokens)
        if self._copying is not None:
            self._copying.begin(state.tokens)

    def step(self, state: DecodeState, noise: Noise) -> StepResult:
        """Returns the next token; in `repair` and `verify` a run of the small model, judged."""
        if self._setting.mode == TRUST:
            return self._trust(state, noise)
        return self._run_and_judge(state, noise)

    def end(self, state: DecodeState) -> None:
        n_emitted, tags = len(state.tokens) - state.n_prompt, self._log.tags
        if tags and tags[-1] is Model.SMALL:  # what was discarded is of no pass of the large model
            state.stats.n_pass_tokens += len(tags) - n_emitted
        self._log.cut(n_emitted)
        for model in (PairedModel(self._session, 0), PairedModel(state.session, 0)):
            model.rewind(state.tokens)
        if self._copying is not None:
            self._copying.end(state.tokens)

    def catch_up(self, tokens: Sequence[int]) -> int:
        """Has both models compute what they missed of ``tokens``; returns how much that was.

        For idle time: whoever is asked next need not do it then.
        """
        n_computed = 0
        for paired in self._models.values():
            text = tokens[: paired.session.context]
            paired.rewind(text)
            if missed := len(text) - paired.session.n_tokens:
                paired.rows_after(text, with_logits=False)
                n_computed += missed
        return n_computed

    def summary(self) -> dict[str, Any]:
        """Returns what happened in the latest output, JSON-ready; see `SwitchLog.summary`.

        policy_ms: spent on reading off doubt, deciding and tagging, between the passes. n_copied:
        tokens that were looked up in the text before a model said them.
        """
        counts = {m: self._models[m].counts if self._models else PassCounts() for m in Model}
        return {
            "setting": self._setting.to_dict(),
            "policy_ms": 1000 * self._policy_s,
            "n_copied": self._n_copied,
            **self._log.summary(counts[Model.SMALL], counts[Model.LARGE], self._size_ratio),
        }

    def explain(self) -> list[str]:
        """Returns what happened in the latest output, in words."""
        found = self.summary()
        lines = [
            f"{self._setting}: {found['n_large']} tokens from the large model, {found['n_small']} "
            f"from the small one, {found['n_switches']} switches"
        ]
        for name, counts in found["passes"].items():
            lines.append(
                f"{name} model: {counts['n_steps']} steps in {counts['step_ms']:.0f} ms, "
                f"{counts['n_catch_ups']} passes over {counts['n_caught_up']} missed tokens in "
                f"{counts['catch_up_ms']:.0f} ms, the prompt in {counts['prompt_ms']:.0f} ms"
            )
        return [
            *lines,
            f"deciding and tagging: {found['policy_ms']:.1f} ms; {found['n_copied']} tokens were "
            "looked up in the text",
        ]

    def close(self) -> None:
        """Closes the small model's session."""
        self._session.close()

    def _trust(self, state: DecodeState, noise: Noise) -> StepResult:
        """Returns the next token, of whichever model is to give it."""
        if self._active is Model.SMALL and (n_may := self._n_small_may(state)) > 0:
            words = self._say(state, noise, (), min(n_may, state.n_left))
            if words:
                state.take_rows()  # of the large model, which was not asked
                return self._tagged(Model.SMALL, words, self._models[Model.SMALL].latest)
        return self._ask_large(state, noise)

    def _run_and_judge(self, state: DecodeState, noise: Noise) -> StepResult:
        """Returns what the large model leaves of a run of the small one, and its own next token."""
        if state.rows is not None:
            return self._ask_large(state, noise)
        run = self._run(state, noise)
        if not len(run.tree):
            return self._ask_large(state, noise)
        pending = [node.token for node in run.tree.nodes]
        doubt, large = self._doubt, self._models[Model.LARGE]
        is_repairing = self._setting.mode == REPAIR
        text, with_logits = [*state.tokens, *pending], is_repairing or state.needs_logits
        rows = large.rows_after(text, len(pending) + 1, with_logits)
        rollback = self._setting.rollback if is_repairing else None
        n_kept, token = judge(state, rows, pending, noise, rollback)
        self._observe(Model.LARGE, rows, n_kept)
        self._rewind(len(state.tokens) + n_kept)
        self._count_run(state, run, n_kept)
        self._tag(Model.LARGE, doubt, large.latest)
        return StepResult((*pending[:n_kept], token), (*[Model.SMALL] * n_kept, Model.LARGE))

    def _ask_large(self, state: DecodeState, noise: Noise) -> StepResult:
        """Returns the large model's next token, after those that were looked up and are its own."""
        large, catch_up = self._models[Model.LARGE], CatchUp()
        rows, copied = state.take_rows(), list[int]()  # prefill left the row of the prompt
        is_prefilled = rows is not None
        if rows is None:
            # It hands back as soon as it may, mostly: after one token, or after the dwell.
            n_turn = 1 if self._policy.discards else self._setting.dwell
            copied = self._looked_up(state, noise, large.session, min(n_turn, state.n_left) - 1)
            text, n_copied = [*state.tokens, *copied], len(copied)
            rows = large.rows_after(text, 1 + n_copied, state.needs_logits, n_copied)
            catch_up = large.latest
        words = self._words(state, noise, Model.LARGE, rows, copied)
        state.stats.n_passes += not is_prefilled
        state.stats.n_pass_tokens += 0 if is_prefilled else len(words)
        return self._tagged(Model.LARGE, words, catch_up)

    def _run(self, state: DecodeState, noise: Noise) -> _Run:
        """Returns what the small model says, as far as policy, request and contexts allow."""
        small, run, text = self._models[Model.SMALL], _Run(self._doubt), list(state.tokens)
        limit = min(self._setting.max_run, state.n_left - 1, self._n_small_may(state))
        while self._active is Model.SMALL and len(run.tree) < limit:
            words = self._say(state, noise, text[len(state.tokens) :], limit - len(run.tree))
            if not len(run.tree):
                run.catch_up = small.latest
            run.ms += small.latest.ms
            for word in words:
                if word.token in state.stop_token_ids:
                    self._log.n_dropped += 1
                    return run
                run.tree.add(word.token, len(run.tree) - 1, word.probability, Model.SMALL)
                text.append(word.token)
            if not words:
                break
        return run

    def _say(
        self, state: DecodeState, noise: Noise, pending: Sequence[int], limit: int
    ) -> list[_Word]:
        """Returns up to ``limit`` tokens that one pass of the small model gives after ``pending``.

        One, and before it those that were looked up and are its own; none where its prediction is
        dropped.
        """
        copied = [] if pending else self._looked_up(state, noise, self._session, limit - 1)
        rows = self._small_rows(state, [*state.tokens, *pending, *copied], len(copied))
        return self._words(state, noise, Model.SMALL, rows, copied, pending)

    def _words(
        self,
        state: DecodeState,
        noise: Noise,
        model: Model,
        rows: Rows,
        copied: Sequence[int],
        pending: Sequence[int] = (),
    ) -> list[_Word]:
        """Returns what ``model`` says after ``pending``, up to where it is not what was looked up.

        rows: after ``pending``, and after each of ``copied``.
        """
        words: list[_Word] = []
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
        if self._copying is not None and not pending:
            self._copying.learn([word.token for word in words], rows)
        return words

    def _looked_up(
        self, state: DecodeState, noise: Noise, session: ModelSession, limit: int
    ) -> list[int]:
        """Returns tokens that the model of ``session`` may say next."""
        if self._copying is None:
            return []
        room = session.context - len(state.tokens)
        started_s = time.perf_counter()
        found = self._copying.propose(state, noise, min(limit, room), session.vocab_size)
        state.stats.draft_ms += 1000 * (time.perf_counter() - started_s)
        return found

    def _tagged(self, model: Model, words: Sequence[_Word], catch_up: CatchUp) -> StepResult:
        """Returns a step of ``words``, noted in the log."""
        for word in words:
            self._tag(model, word.doubt, catch_up)
        return StepResult(tuple(word.token for word in words), (model,) * len(words))

    def _count_run(self, state: DecodeState, run: _Run, n_kept: int) -> None:
        n_run = len(run.tree)
        evaluated = range(min(n_kept + 1, n_run))
        state.stats.count_pass(run.tree, evaluated, range(n_kept), n_kept == n_run)
        state.stats.draft_ms += run.ms
        state.stats.verify_ms += self._models[Model.LARGE].latest.ms
        self._log.n_dropped += n_run - n_kept
        for _ in range(n_kept):
            self._tag(Model.SMALL, run.doubt, run.catch_up)

    def _small_rows(self, state: DecodeState, text: Sequence[int], n_drafted: int) -> Rows:
        """Returns the small model's rows after ``text`` without its drafts, and after each."""
        small = self._models[Model.SMALL]
        rows = small.rows_after(text, 1 + n_drafted, state.needs_logits, n_drafted)
        return widened(rows, state.session.vocab_size)

    def _n_small_may(self, state: DecodeState) -> int:
        """Returns how many tokens the small model's context lets it say yet."""
        return self._session.context - len(state.tokens) + 1

    def _observe(self, model: Model, rows: Rows, index: int) -> Signal:
        """Tells the policy of a prediction; the model to go on with is active then."""
        started_s = time.perf_counter()
        signal = Signal.of(rows.stats, index)
        self._active = self._policy.observe(model, signal)
        self._is_discarded = (
            model is Model.SMALL and self._active is Model.LARGE and self._policy.discards
        )
        self._doubt = Doubt(signal.entropy, self._policy.level)
        self._policy_s += time.perf_counter() - started_s
        return signal

    def _tag(self, model: Model, doubt: Doubt, catch_up: CatchUp) -> None:
        started_s = time.perf_counter()
        self._log.add(model, doubt, catch_up)
        self._policy_s += time.perf_counter() - started_s

    def _rewind(self, n_tokens: int) -> None:
        for model in self._models.values():
            model.session.truncate(min(model.session.n_tokens, n_tokens))


@dataclass(frozen=True, slots=True)
class _Word:
    """A token a model says. doubt: before it. probability: of its likeliest token."""

    token: int
    probability: float
    doubt: Doubt


@dataclass
class _Run:
    """Tokens of the small model that wait for judgement, a chain.

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
    return Rows(logits, rows.hidden, rows.stats)
