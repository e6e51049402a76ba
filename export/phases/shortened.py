"""A checkpoint that is used for shorter texts than it was made for."""

from __future__ import annotations

import dataclasses

from edgedec.export.checkpoints.checkpoint import Checkpoint, EditedCheckpoint
from edgedec.models.config import ModelConfig


class Shortened(EditedCheckpoint):
    """The checkpoint as a model of ``context`` positions."""

    def __init__(self, checkpoint: Checkpoint, context: int) -> None:
        super().__init__(checkpoint)
        self._config = dataclasses.replace(checkpoint.config, max_positions=context)

    @property
    def config(self) -> ModelConfig:
        """The hyper-parameters with fewer positions."""
        return self._config
