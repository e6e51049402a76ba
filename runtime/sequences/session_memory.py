"""What an engine's sequences remember: between prompts in memory, and between runs in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgedec.models.config import ModelConfig
from edgedec.models.errors import SessionError
from edgedec.runtime.sequences.model import Model
from edgedec.runtime.sequences.pool import WORTH_KEEPING, SequencePool
from edgedec.runtime.sequences.prefix_cache import PrefixCache
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.state import TOKEN_AXIS, Layout, SessionState, cut
from edgedec.runtime.text.common_prefix import common_prefix

if TYPE_CHECKING:
    from edgedec.runtime.sequences.prefix_files import PrefixFiles
    from edgedec.runtime.sequences.session_file import Expected

TARGET, DRAFT = "target", "draft"

_ROWS_AT_ONCE = 32
"""Rows that are copied between two passes: so many take less than a pass."""


@dataclass(frozen=True)
class KnownModel:
    """A model that may be open or not. context: most tokens of its sequences."""

    fingerprint: str
    config: ModelConfig
    context: int


class SessionMemory:
    """The sequences of one engine by role, what they computed before, and their files.

    What a sequence holds is copied only when a prompt is about to overwrite it.
    """

    def __init__(self, max_bytes: int = 0, files: PrefixFiles | None = None) -> None:
        """Makes a memory of at most ``max_bytes`` of rows besides those in the sequences.

        files: where beginnings of texts outlive the engine; nowhere when None.
        """
        self.prefix_cache = PrefixCache(max_bytes)
        self._files = files
        self._groups: dict[str, set[str]] = {}  # role -> groups that are remembered
        self._known: dict[str, KnownModel] = {}
        self._pools: dict[str, SequencePool] = {}
        self._waiting: dict[str, SessionState] = {}  # loaded for models not open yet
        self.is_approximate = False  # whether rounded rows were ever loaded

    def know(self, role: str, model: KnownModel) -> None:
        """Learns which model has ``role``, before any session of it is open."""
        self._known[role] = model

    def open(self, role: str, model: Model, context: int) -> SequencePool:
        """Returns the pool of the model of ``role``, which has the state loaded for it."""
        pool = SequencePool(model, context, partial(self._remember_by_steps, role))
        self._pools[role] = pool
        state = self._waiting.pop(role, None)
        if state is not None and state.layout == (sequence := pool.take_idle()).layout:
            sequence.restore(state)
        return pool

    def take(self, role: str, text: Sequence[int]) -> TokenSequence:
        """Returns a sequence for ``text``; see `SequencePool.take`."""
        return self._pools[role].take(text)

    def recall(self, role: str, sequence: TokenSequence, prompt: Sequence[int]) -> None:
        """Makes ``sequence`` hold the longest known prefix of ``prompt``, its last token left out.

        What it forgets for that, or is about to forget for ``prompt``, is remembered.
        """
        text = prompt[:-1]
        n_common = sequence.reachable(common_prefix(sequence.tokens, text))
        pool = self._pools.get(role)
        other, n_shared = (sequence, 0) if pool is None else pool.find(text, but=sequence)
        known = self._remembered(role, sequence, text)
        self._remember(role, sequence, n_common)
        if n_shared > n_common and n_shared >= (len(known[-1].tokens) if known else 0):
            sequence.begin_like(other, n_shared)
        elif known and len(known[-1].tokens) > n_common:
            sequence.restore(*_behind(known, n_common))
        self._read_files(role, sequence, text)

    def _read_files(self, role: str, sequence: TokenSequence, text: Sequence[int]) -> None:
        """Goes on with what files know of ``text``."""
        n_held = sequence.reachable(common_prefix(sequence.tokens, text))
        if self._files is None or role not in self._known:
            return
        if len(text) // self._files.block <= n_held // self._files.block:
            return
        expected = self._expected(role, sequence.layout)
        blocks = self._files.find(expected, sequence.group, text, n_held)
        if blocks and len(blocks[-1].tokens) > n_held:
            sequence.restore(*_behind(blocks, n_held))

    def _remembered(
        self, role: str, sequence: TokenSequence, text: Sequence[int]
    ) -> list[SessionState]:
        """Returns the longest prefix of ``text`` that no sequence holds any more, in segments."""
        if self.prefix_cache.max_bytes == 0:
            return []
        key = _key(role, sequence.group)
        return self.prefix_cache.find(key, text, sequence.layout, sequence.look_back)

    def keep(self) -> None:
        """Writes beginnings of all texts to where they outlive the engine, if there is a place.

        Not where some may be approximate: other programs read them, too.
        """
        if self._files is None or self.is_approximate:
            return
        for role, pool in self._open().items():
            if role not in self._known:
                continue
            for sequence in pool.sequences:
                self._write(role, sequence)
            for group in tuple(self._groups.get(role, ())):
                for text in tuple(self.prefix_cache.texts(_key(role, group))):
                    self._write_remembered(role, group, text)

    def tidy(self) -> None:
        """Takes a step of what is left to do for texts that are over; called between passes."""
        for pool in self._pools.values():
            if pool.leaving:
                pool.tidy()

    def _write_remembered(self, role: str, group: str, text: Sequence[int]) -> None:
        """Writes a text that the prefix cache knows."""
        assert self._files is not None
        pool = self._pools[role]
        if not self._known[role].config.look_back:
            layout = pool.latest.layout
            segments = self.prefix_cache.find(_key(role, group), text, layout)
            if segments:
                rows_of = partial(_rows_of_segments, segments)
                self._files.insert(self._expected(role, layout), group, text, rows_of)
            return
        sequence = pool.take(text, group)  # only there windows have what passes look at
        self.recall(role, sequence, [*text, 0])
        self._write(role, sequence)
        pool.give_back(sequence)

    def _write(self, role: str, sequence: TokenSequence) -> None:
        assert self._files is not None
        text = sequence.tokens[: sequence.reachable(sequence.n_exact)]
        if len(text) >= self._files.block and not sequence.is_closed:
            expected = self._expected(role, sequence.layout)
            rows_of = partial(_rows_of, sequence, len(text))
            self._files.insert(expected, sequence.group, text, rows_of)

    def save(
        self, path: Path, text: Sequence[int] | None = None, *, is_rounded: bool = False
    ) -> None:
        """Writes what the sequences used last hold, and what was loaded for models not open yet.

        text: write what is known of it instead, wherever that is remembered.
        is_rounded: see `write_states`. What follows rounded rows is rounded, too, so that every
            file says what is approximate.

        Raises:
            SessionError: The file cannot be written.
        """
        from edgedec.runtime.sequences.session_file import SavedModel, write_states

        states = self._waiting | {
            role: pool.latest.snapshot() if text is None else self._known_of(role, pool, text)
            for role, pool in self._open().items()
        }
        if not states.keys() <= self._known.keys():
            raise SessionError("this engine's model is of no bundle, so no file can name it")
        write_states(
            path,
            {
                role: SavedModel(model.fingerprint, states[role])
                for role, model in self._known.items()
                if role in states
            },
            is_rounded=is_rounded or self.is_approximate,
        )

    def load(self, path: Path) -> int:
        """Makes idle sequences hold what `save` wrote; returns the tokens of the target model.

        Raises:
            SessionError: The file cannot be read, is damaged, or is of other models; all sequences
                stay as they were.
        """
        from edgedec.runtime.sequences.session_file import read_states

        states = read_states(
            path, {role: self._expected(role, self._layout(role)) for role in self._known}
        )
        self.is_approximate |= any(saved.is_rounded for saved in states.values())
        for role, saved in states.items():
            pool = self._open().get(role)
            if pool is None:
                self._set_aside(role, self._waiting.get(role))
                self._waiting[role] = saved.state
                continue
            sequence = pool.take_idle()
            self._remember(role, sequence, common_prefix(sequence.tokens, saved.state.tokens))
            sequence.restore(saved.state)
        return len(states[TARGET].state.tokens)

    def check_can_round(self) -> None:
        """Raises a SessionError unless `save` can round what it writes."""
        from edgedec.runtime.sequences.rounded_rows import check_can_round

        layout = self._layout(TARGET)
        if layout is not None:
            check_can_round(layout)

    def _open(self) -> dict[str, SequencePool]:
        return {role: pool for role, pool in self._pools.items() if not pool.model.is_closed}

    def _known_of(self, role: str, pool: SequencePool, text: Sequence[int]) -> SessionState:
        """Returns the longest known prefix of ``text`` with its rows; it may be empty."""
        sequence = pool.take(text)
        try:
            self.recall(role, sequence, [*text, 0])  # a prompt, whose last token is left out
            n_known = common_prefix(sequence.tokens, text)
            return sequence.snapshot(sequence.resting(n_known))
        finally:
            pool.give_back(sequence)

    def _set_aside(self, role: str, state: SessionState | None) -> None:
        """Keeps what was loaded for a model that is not open yet, and more than one text of it."""
        if state is None or self.prefix_cache.max_bytes == 0:
            return
        n_tokens = len(state.tokens)

        def snapshot(stop: int, start: int) -> SessionState:
            return SessionState(
                state.tokens[:stop], start, cut(state.kv_rows, n_tokens, start, stop)
            )

        look_back = self._known[role].config.look_back
        self.prefix_cache.insert(role, state.tokens, snapshot, look_back)

    def _remember(self, role: str, sequence: TokenSequence, n_kept: int) -> None:
        """Keeps what it holds if more than a few tokens behind ``n_kept`` will be lost.

        Checkpoints come with it: prompts that part from it later go on from there.
        """
        if sequence.n_tokens - n_kept < WORTH_KEEPING or self.prefix_cache.max_bytes == 0:
            return
        key = _key(role, sequence.group)
        self._groups.setdefault(role, set()).add(sequence.group)
        for n_tokens in (*sequence.state.checkpoints, sequence.resting(sequence.n_tokens)):
            tokens, look_back = sequence.tokens[:n_tokens], sequence.look_back
            self.prefix_cache.insert(key, tokens, sequence.snapshot, look_back)

    def _remember_by_steps(self, role: str, sequence: TokenSequence) -> Iterator[None]:
        """As `_remember`, of all that a sequence holds, a few rows at each step."""
        if sequence.look_back or any(sequence.state.checkpoints):
            self._remember(role, sequence, 0)
            return
        n_tokens = sequence.resting(sequence.n_tokens)
        if n_tokens < WORTH_KEEPING or self.prefix_cache.max_bytes == 0:
            return
        self._groups.setdefault(role, set()).add(sequence.group)
        key = _key(role, sequence.group)
        for stop in range(_ROWS_AT_ONCE, n_tokens + _ROWS_AT_ONCE, _ROWS_AT_ONCE):
            tokens = sequence.tokens[: min(stop, n_tokens)]
            self.prefix_cache.insert(key, tokens, sequence.snapshot)
            yield

    def _layout(self, role: str) -> Layout | None:
        """Returns the layout of a model's rows; None while it is not open."""
        pool = self._open().get(role)
        return None if pool is None else pool.latest.layout

    def _expected(self, role: str, layout: Layout | None) -> Expected:
        from edgedec.runtime.sequences.session_file import Expected

        model = self._known[role]
        config = model.config
        return Expected(
            fingerprint=model.fingerprint,
            context=model.context,
            vocab_size=config.n_token_ids,
            # Two arrays of float32 for each layer, and as much again for what goes with them.
            max_row_nbytes=8 * config.n_kv_numbers
            + 4 * len(config.recurrent_layers) * config.recurrence.kept_size,
            look_back=config.look_back,
            layout=layout,
        )


def _rows_of(sequence: TokenSequence, n_tokens: int, stop: int, start: int) -> SessionState:
    """Returns rows of tokens ``start`` to ``stop``, of which no pass may be able to follow.

    n_tokens: of those that a pass may follow.
    """
    if sequence.reachable(stop) == stop:
        return sequence.snapshot(stop, start)
    whole = sequence.snapshot(n_tokens, start)
    rows = cut(whole.kv_rows, n_tokens - start, 0, stop - start)
    return SessionState(whole.tokens[:stop], start, rows)


def _rows_of_segments(segments: Sequence[SessionState], stop: int, start: int) -> SessionState:
    """Returns rows of tokens ``start`` to ``stop`` of a text that ``segments`` make up."""
    parts = [
        cut(segment.kv_rows, n, max(0, start - segment.start), min(n, stop - segment.start))
        for segment in segments
        if segment.start < stop
        and start < segment.start + (n := len(segment.tokens) - segment.start)
    ]
    rows = {name: np.concatenate([part[name] for part in parts], TOKEN_AXIS) for name in parts[0]}
    return SessionState(segments[-1].tokens[:stop], start, rows)


def _behind(segments: Sequence[SessionState], n_tokens: int) -> list[SessionState]:
    """Returns segments without the rows of the first tokens."""
    return [p.after(max(p.start, n_tokens)) for p in segments if len(p.tokens) > n_tokens]


def _key(role: str, group: str) -> str:
    """Returns under which name texts of a group are remembered."""
    return f"{role} {group}" if group else role
