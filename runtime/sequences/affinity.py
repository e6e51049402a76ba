"""Which processors the threads of a model stay on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from edgedec.models.errors import ConfigError
from edgedec.system.processors import allowed_processors, held_on

T = TypeVar("T")


@dataclass(frozen=True)
class Affinity:
    """A processor for each thread, the calling one first; none leaves the choice to the system."""

    processors: tuple[int, ...] = ()

    @classmethod
    def of(cls, processors: Sequence[int] | None, threads: int | None = None) -> Affinity:
        """Returns the affinity that a caller asks for.

        Raises:
            ConfigError: There is no such processor, or not one for each of ``threads``.
        """
        if processors is None:
            return cls()
        allowed = allowed_processors()
        for processor in processors:
            if isinstance(processor, bool) or processor not in allowed:
                raise ConfigError(
                    f"affinity names processor {processor!r}, expected some that this process may "
                    f"use: {', '.join(map(str, allowed))}"
                )
        if not processors or len(set(processors)) < len(processors):
            raise ConfigError(
                f"affinity is {list(processors)}, expected different processors, at least one"
            )
        if threads not in (None, len(processors)):
            raise ConfigError(
                f"affinity names {len(processors)} processors for {threads} threads, expected one "
                "for each"
            )
        return cls(tuple(processors))

    def first(self, threads: int) -> Affinity:
        """Returns the affinity of a second model with as many threads or fewer.

        Raises:
            ConfigError: It has more.
        """
        if self.processors and threads > len(self.processors):
            raise ConfigError(
                f"affinity names {len(self.processors)} processors, but the draft model has "
                f"{threads} threads: name more processors, or use fewer threads"
            )
        return Affinity(self.processors[:threads])

    @property
    def of_pool(self) -> str:
        """The processors of all threads but the calling one, as ONNX Runtime wants them.

        It counts from 1; semicolons separate threads.
        """
        return ";".join(str(processor + 1) for processor in self.processors[1:])

    def held(self) -> AbstractContextManager[None]:
        """Keeps the calling thread on its processor, where the system offers that."""
        return held_on(self.processors[0]) if self.processors else nullcontext()

    def run(self, call: Callable[..., T], *arguments: object) -> T:
        """Returns what ``call`` returns, while the calling thread is kept on its processor."""
        with self.held():
            return call(*arguments)
