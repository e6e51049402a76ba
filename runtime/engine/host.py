"""What ways of asking need of an engine."""

from __future__ import annotations

from typing import Protocol

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.engine.stream import OnDone, Stream
from edgedec.runtime.sequences.prefill import Progress
from edgedec.runtime.text.prompt import Prompt


class Host(Protocol):
    """An engine, to those that open its streams."""

    @property
    def loaded(self) -> LoadedModel:
        """The parts it is made of; a `SessionError` once it is closed."""

    def open_stream(
        self,
        prompt: Prompt,
        config: GenerationConfig | None,
        on_progress: Progress | None,
        on_done: OnDone | None = None,
        is_answer: bool = False,
        n_begun: int = 0,
    ) -> Stream:
        """Returns the output as it appears, as `Engine.open_stream` does."""
