"""What `walk` takes samples of, and the engines that it takes them with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from edgedec.apps.evaluation.samples import Models, Sample, Setting
from edgedec.models.errors import ConfigError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.methods.method_parts import PLAIN

OpenEngine = Callable[[Models], Engine]


class Work(Protocol):
    """Samples to take."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the samples, in their order."""

    def warm_up(self, setting: Setting) -> None:
        """Loads what the setting needs; whatever is wrong with it comes to light here."""

    def n_at_once(self, settings: Sequence[Setting], n_requested: int | None) -> int:
        """Returns how many samples are taken at a time; or raises a ConfigError."""

    def take(self, setting: Setting, index: int) -> Sample:
        """Returns the sample of a problem under a setting; threads may ask for several at once."""

    def stop(self) -> None:
        """Has samples that other threads are taking end soon; they are not whole then."""


@dataclass
class Engines:
    """Engines by what may share one."""

    open: OpenEngine
    stack: ExitStack
    _opened: dict[str, Engine] = field(default_factory=dict)

    def of(self, setting: Setting) -> Engine:
        """Returns the setting's engine, opened once; plain settings of one model share theirs."""
        request = setting.request
        is_plain = request.switch is None and request.method in (None, PLAIN)
        key = str(setting.models) if is_plain else setting.label
        if key not in self._opened:
            self._opened[key] = self.stack.enter_context(self.open(setting.models))
        return self._opened[key]


@dataclass
class OneAtATime:
    """Work whose samples are taken one after the other, in the thread that asks."""

    WHY: ClassVar[str]
    """Why several at a time are refused."""

    engines: Engines

    def warm_up(self, setting: Setting) -> None:
        """Opens the setting's engine."""
        self.engines.of(setting)

    def n_at_once(self, settings: Sequence[Setting], n_requested: int | None) -> int:
        """Returns 1; a ConfigError if several were asked for."""
        if n_requested not in (None, 1):
            raise ConfigError(f"{self.WHY}: leave out --parallel")
        return 1

    def stop(self) -> None:
        """Nothing is taken in other threads."""
