"""What suggestions keep between two starts: nothing, unless its owner says where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from edgedec.autocomplete import LearnedOffers
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.engine import Engine
from edgedec.runtime.methods.store_source import tokenizer_sha256
from edgedec.runtime.opening.options import EngineOptions


@dataclass(frozen=True)
class TypingMemory:
    """Where suggestions keep what they need again. Only their owner may read these files.

    learn: folder for what became of offers, and for lines written where something was offered.
    session: file for what the model has read, so that the next start need not read it again.
    Empty: it is not kept.
    """

    learn: str = ""
    session: str = ""

    def options(self, bundle: Path, usual: EngineOptions) -> EngineOptions:
        """Returns how a bundle is loaded, with its own file of what was written in the folder.

        Raises:
            ConfigError: There is no place for the folder.
            BundleError: The bundle is broken.
        """
        if not self.learn:
            return usual
        folder = Path(self.learn).expanduser()
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
        return LearnedOffers(Path(self.learn).expanduser() / "offers.json") if self.learn else None

    def recall(self, engine: Engine) -> None:
        """Makes an engine know what was read before.

        Raises:
            SessionError: The file is damaged, or of another model; the engine is as it was.
        """
        if self.session and self._session.exists():
            engine.load_session(self._session)

    def keep(self, engine: Engine) -> None:
        """Writes down what an engine has read last.

        Raises:
            SessionError: It cannot be written.
        """
        if self.session:
            engine.save_session(self._session)

    @property
    def _session(self) -> Path:
        return Path(self.session).expanduser()


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
        raise ConfigError(f"a share is {text!r}, expected 0 to 1, or 0% to 100%")
    return share
