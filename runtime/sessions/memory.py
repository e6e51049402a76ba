"""What an engine's sessions remember: between prompts in memory, and between runs in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError, SessionError
from edgedec.models.manifest import BundleManifest
from edgedec.runtime.sessions.prompt_cache import PromptCache
from edgedec.runtime.sessions.session import ModelSession
from edgedec.runtime.sessions.state import SessionState
from edgedec.runtime.text.common_prefix import common_prefix

if TYPE_CHECKING:
    from edgedec.runtime.sessions.file import Expected

TARGET, DRAFT = "target", "draft"

_WORTH_KEEPING = 16
"""Tokens that are sooner computed anew than looked after."""


@dataclass(frozen=True)
class KnownModel:
    """A model that may have a session, open or not. context: most tokens of that session."""

    fingerprint: str
    config: ModelConfig
    context: int


class SessionMemory:
    """The sessions of one engine by role, what they computed before, and their files.

    What a session holds is copied only when a prompt is about to overwrite it.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        """Makes a memory of at most ``max_bytes`` of rows besides those in the sessions."""
        self.prompt_cache = PromptCache(max_bytes)
        self._known: dict[str, KnownModel] = {}
        self._sessions: dict[str, ModelSession] = {}
        self._waiting: dict[str, SessionState] = {}  # loaded for sessions not open yet

    @classmethod
    def of_mb(cls, prompt_cache_mb: int) -> Self:
        """Returns a memory of ``prompt_cache_mb`` million bytes.

        Raises:
            ConfigError: That is no size.
        """
        size = prompt_cache_mb
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ConfigError(f"prompt_cache_mb is {size!r}, expected a whole number, 0 for none")
        return cls(size * 10**6)

    def know(self, role: str, model: KnownModel) -> None:
        """Learns which model has ``role``, before any session of it is open."""
        self._known[role] = model

    def open(self, role: str, session: ModelSession) -> None:
        """Takes note of the session of ``role``; gives it the state that was loaded for it."""
        self._sessions[role] = session
        state = self._waiting.pop(role, None)
        if state is not None and state.layout == session.snapshot(0).layout:
            session.restore(state)

    def recall(self, role: str, session: ModelSession, prompt: Sequence[int]) -> None:
        """Makes ``session`` hold the longest known prefix of ``prompt``, its last token left out.

        What the session forgets for it, or is about to forget for ``prompt``, is remembered.
        """
        if self.prompt_cache.max_bytes == 0:
            return
        n_common = common_prefix(session.tokens, prompt[:-1])
        pieces = self.prompt_cache.find(role, prompt[:-1], session.snapshot(0).layout)
        self._remember(role, session, n_common)
        for piece in pieces:
            if len(piece.tokens) > n_common:
                session.restore(piece.after(max(piece.start, n_common)))

    def save(self, path: Path) -> None:
        """Writes what the open sessions hold, and what was loaded for others.

        Raises:
            SessionError: The file cannot be written.
        """
        from edgedec.runtime.sessions.file import SavedModel, write_states

        states = self._waiting | {
            role: session.snapshot()
            for role, session in self._sessions.items()
            if role == TARGET or not session.is_closed
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
        )

    def load(self, path: Path) -> int:
        """Makes the sessions hold what `save` wrote; returns the tokens of the target model.

        Raises:
            SessionError: The file cannot be read, is damaged, or is of other models; all sessions
                stay as they were.
        """
        from edgedec.runtime.sessions.file import read_states

        states = read_states(path, {role: self._expected(role) for role in self._known})
        for role, saved in states.items():
            session = self._sessions.get(role)
            if session is None or session.is_closed:
                self._waiting[role] = saved.state
                continue
            self._remember(role, session, common_prefix(session.tokens, saved.state.tokens))
            session.restore(saved.state)
        return len(states[TARGET].state.tokens)

    def _remember(self, role: str, session: ModelSession, n_kept: int) -> None:
        """Keeps what ``session`` holds if more than a few tokens behind ``n_kept`` will be lost."""
        if session.n_tokens - n_kept >= _WORTH_KEEPING and self.prompt_cache.max_bytes > 0:
            self.prompt_cache.insert(role, session.tokens, session.snapshot)

    def _expected(self, role: str) -> Expected:
        from edgedec.runtime.sessions.file import Expected

        model, session = self._known[role], self._sessions.get(role)
        config = model.config
        is_open = session is not None and not session.is_closed
        return Expected(
            fingerprint=model.fingerprint,
            context=model.context,
            vocab_size=config.vocab_size,
            # Two arrays of float32 for each layer, and as much again for what goes with them.
            max_row_nbytes=16 * config.n_layers * config.n_kv_heads * config.head_size,
            layout=session.snapshot(0).layout if session is not None and is_open else None,
        )


def fingerprint_of(manifest: BundleManifest, name: str) -> str:
    """Returns what identifies all that decides the rows of the KV cache of the model ``name``."""
    entry = manifest.models[name]
    facts = {
        "config": entry.config.canonical(),
        "files": [manifest.files[path].sha256 for path in entry.files],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
