"""One of the two models, brought up to the text only when it is asked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.runtime.sessions.prefill import PREFILL_CHUNK
from edgedec.runtime.sessions.session import ModelSession, Rows, TokenTree
from edgedec.runtime.text.common_prefix import common_prefix


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What the latest rows took. gap: tokens computed besides the last one and drafts after it."""

    gap: int = 0
    ms: float = 0.0


@dataclass
class PassCounts:
    """What a model's passes took.

    n_steps, step_ms: passes over the newest token, and drafts after it. n_catch_ups, n_caught_up,
    catch_up_ms: passes over tokens it had missed, how many those were besides the last one of each,
    and the time; such a pass gives the next token as well. prompt_ms: those that reached back into
    the prompt.
    """

    n_steps: int = 0
    step_ms: float = 0.0
    n_catch_ups: int = 0
    n_caught_up: int = 0
    catch_up_ms: float = 0.0
    prompt_ms: float = 0.0

    def add(self, latest: CatchUp, is_prompt: bool) -> None:
        """Counts one more."""
        if is_prompt:
            self.prompt_ms += latest.ms
        elif latest.gap:
            self.n_catch_ups += 1
            self.n_caught_up += latest.gap
            self.catch_up_ms += latest.ms
        else:
            self.n_steps += 1
            self.step_ms += latest.ms


class PairedModel:
    """A session, and what its passes took since the prompt of ``n_prompt`` tokens."""

    def __init__(self, session: ModelSession, n_prompt: int) -> None:
        self.session = session
        self.counts = PassCounts()
        self.latest = CatchUp()
        self._n_prompt = n_prompt

    def rows_after(
        self, text: Sequence[int], n_rows: int = 1, with_logits: bool = True, n_drafted: int = 0
    ) -> Rows:
        """Returns the rows after each of the last ``n_rows`` tokens of ``text``.

        n_drafted: how many of them nobody has said yet, which is no catching up.

        The KV cache holds all of ``text`` then. What it had missed is computed in the same pass,
        or before in passes as wide as a prompt's.
        """
        session, started_s = self.session, time.perf_counter()
        n_before = len(text) - n_rows
        session.truncate(min(common_prefix(session.tokens, text), n_before))
        n_known = session.n_tokens
        while len(text) - session.n_tokens > PREFILL_CHUNK:
            chunk = text[session.n_tokens : min(session.n_tokens + PREFILL_CHUNK, n_before)]
            session.forward(TokenTree.chain(chunk), (), with_logits=False)
            session.commit(range(len(chunk)))
        rest = text[session.n_tokens :]
        asked = range(len(rest) - n_rows, len(rest))
        rows = session.forward(TokenTree.chain(rest), asked, with_logits=with_logits)
        session.commit(range(len(rest)))
        ms = 1000 * (time.perf_counter() - started_s)
        self.latest = CatchUp(len(text) - n_drafted - n_known - 1, ms)
        self.counts.add(self.latest, n_known < self._n_prompt - 1)
        return rows

    def rewind(self, text: Sequence[int]) -> None:
        """Forgets what is no beginning of ``text``, and a pass in progress."""
        self.session.truncate(common_prefix(self.session.tokens, text))
