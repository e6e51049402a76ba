"""Settings of a program, in the folder that the platform has for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import platformdirs

from edgedec.models.errors import ConfigError
from edgedec.system.files import replace_text


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


S = TypeVar("S", bound=_Dataclass)


class KeptSettings(Generic[S]):
    """One file of JSON that its owner may edit."""

    def __init__(
        self, name: str, parse: Callable[[object, str], S], folder: Path | None = None
    ) -> None:
        """Names the file.

        Args:
            name: Of the file.
            parse: From a table, and where it is from, to settings; what it lacks is as usual.
            folder: Where the file is; None: in the platform's folder for settings.
        """
        self.path = (folder or Path(platformdirs.user_config_dir("edgedec"))) / name
        self._parse = parse

    def read(self) -> S:
        """Returns what is in the file; the usual settings if there is none.

        Raises:
            ConfigError: The file makes no sense.
        """
        try:
            table: Mapping[str, object] = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            table = {}
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"cannot read {self.path}: {error}; mend or remove it") from None
        return self._parse(table, str(self.path))

    def write(self, settings: S) -> None:
        """Replaces the file, whole or not at all.

        Raises:
            ConfigError: It cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self.path, json.dumps(asdict(settings), indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from None
