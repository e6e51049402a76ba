"""What suggestions keep between two starts: nothing, unless its owner says where."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.apps.user_paths import user_path
from edgedec.autocomplete import LearnedOffers
from edgedec.models.errors import ConfigError, SessionError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.runtime.methods.store_source import tokenizer_sha256
from edgedec.runtime.opening.options import EngineOptions

if TYPE_CHECKING:
    from edgedec.apps.typing.idle_training import IdleTraining

N_SESSIONS = 8
"""Maximum number of documents whose KV cache is kept."""

SESSION_BYTES = 1 << 29
"""Maximum bytes of all of them."""

_SUFFIX = ".session"


@dataclass(frozen=True)
class TypingMemory:
    """Where suggestions keep what they need again. Only their owner may read these files.

    learn: folder for what became of offers, and for lines written where something was offered.
    session: folder for what the model has read of each of the latest documents, so that the next
        start need not read them again.
    adapt: file for what is written, from which the draft head learns while nobody types.
    Empty: it is not kept.
    """

    learn: str = ""
    session: str = ""
    adapt: str = ""

    def options(self, bundle: Path, usual: EngineOptions) -> EngineOptions:
        """Returns how a bundle is loaded, with its own file of what was written in the folder.

        Raises:
            ConfigError: There is no place for the folder.
            BundleError: The bundle is broken.
        """
        if not self.learn:
            return usual
        folder = user_path(self.learn)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"cannot learn in {folder}: {error.strerror}") from None
        store = folder / f"{tokenizer_sha256(read_manifest(bundle))[:16]}.ngrams"
        return replace(usual, store=store, is_store_growing=False)

    def learned(self) -> LearnedOffers | None:
        """Returns what was learned of offers; None where nothing is to be.

        Raises:
            ConfigError: The file makes no sense.
        """
        return LearnedOffers(user_path(self.learn) / "offers.json") if self.learn else None

    def replay(self, bundle: Path) -> ReplayBuffer | None:
        """Returns what keeps texts that are written; None where nothing is to be.

        Raises:
            BundleError: The bundle is broken.
            ConfigError: The file is something else, or cannot be written.
        """
        if not self.adapt:
            return None
        path = user_path(self.adapt)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"cannot keep texts in {path}: {error.strerror}") from None
        return ReplayBuffer.made(path, bundle)

    def idle_training(
        self, bundle: Path, share: float, tell: Callable[[str], None]
    ) -> IdleTraining | None:
        """Returns what learns from these texts while nobody types; None where nothing is kept.

        share: Of the time. tell: Called with what people should know.
        """
        if not self.adapt:
            return None
        from edgedec.apps.typing.idle_training import IdleTraining

        return IdleTraining(bundle, user_path(self.adapt), share, tell)

    def recall(self, engine: Engine, bundle: Path) -> None:
        """Makes an engine know what was read before, the latest document last.

        Raises:
            SessionError: A file is damaged, or of another model; it is removed.
        """
        failures: list[SessionError] = []
        for path, _ in self._sessions():
            if path.name.startswith(_digest(str(bundle.absolute()))):
                try:
                    engine.load_session(path)
                except SessionError as error:
                    failures.append(error)
                    _remove(path)
        if failures:
            raise failures[0]

    def keep(self, engine: Engine, bundle: Path, prompts: Mapping[str, Sequence[int]]) -> None:
        """Writes down what an engine has read, a file for each document; removes the oldest ones.

        Args:
            prompts: Token ids by the document's name, the latest last.

        Raises:
            SessionError: It cannot be written.
        """
        if not self.session:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SessionError(
                f"cannot keep sessions in {self._folder}: {error.strerror}"
            ) from None
        for name, prompt in prompts.items():
            file = f"{_digest(str(bundle.absolute()))}-{_digest(name)}{_SUFFIX}"
            engine.save_session(self._folder / file, prompt)
        newest_first = self._sessions()[::-1]
        n_bytes = accumulate(size for _, size in newest_first)
        for i, ((path, _), so_far) in enumerate(zip(newest_first, n_bytes, strict=True)):
            if i >= N_SESSIONS or so_far > SESSION_BYTES:
                _remove(path)

    def _sessions(self) -> list[tuple[Path, int]]:
        """Returns the files in the folder and their bytes, the oldest first."""
        sessions = []
        for path in self._folder.glob(f"*{_SUFFIX}") if self.session else ():
            with suppress(FileNotFoundError):  # another program may remove them, too
                status = path.stat()
                sessions.append((status.st_mtime_ns, path, status.st_size))
        return [(path, size) for _, path, size in sorted(sessions)]

    @property
    def _folder(self) -> Path:
        return user_path(self.session)


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def share_of(text: str) -> float:
    """Returns a share, 0 to 1, that may be written as ``0.3`` or ``30%``.

    Raises:
        ConfigError: It is no share.
    """
    is_percent = text.strip().endswith("%")
    try:
        share = float(text.strip().removesuffix("%")) / (100 if is_percent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"the share of time is {text!r}, expected 0 to 1, or 0% to 100%")
    return share
