"""What a bundle's model says to prompts, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.apps.training.features import WINDOW
from edgedec.models.manifest import BundleManifest

if TYPE_CHECKING:
    from edgedec.export.heads.batch_writer import BatchWriter
    from edgedec.export.heads.feature_file import TextFeatures

_WRITTEN = 192


class OwnAnswers:
    """The target model of a bundle, as one that answers; it is read when first asked.

    layers: whose hidden states are kept. temperature: of its answers. report: called with what is
    going on, and tokens done of how many. is_over: ends answers where they are.
    """

    def __init__(
        self,
        bundle: Path,
        manifest: BundleManifest,
        layers: tuple[int, ...],
        temperature: float,
        n_threads: int,
        report: Callable[[str, int, int], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._bundle = bundle
        self._manifest = manifest
        self._layers = layers
        self._temperature = temperature
        self._n_threads = n_threads
        self._report = report
        self._is_over = is_over

    def __call__(self, prompts: Sequence[list[int]], seed: int) -> list[TextFeatures]:
        """Returns the ends of ``prompts``, each with its answer behind, and what the model showed.

        Raises:
            ConfigError: The model cannot be computed by torch.
        """
        from edgedec.export.heads.batch_writer import WritingPlan

        room = min(WINDOW, self._manifest.target.context)
        n_new = min(_WRITTEN, room // 2)
        asked = [prompt[n_new - room :] for prompt in prompts]
        stop_ids = frozenset(self._manifest.stop_token_ids)
        return self._writer.write(
            asked,
            WritingPlan(n_new, self._temperature, stop_ids, seed, self._layers),
            lambda n: self._report("write", n, n_new * len(asked)),
            self._is_over,
        )

    @cached_property
    def _writer(self) -> BatchWriter:
        from edgedec.export.heads.batch_writer import BatchWriter
        from edgedec.export.heads.bundle_weights import BundleWeights

        target = self._manifest.target
        return BatchWriter(BundleWeights(self._bundle, target), target.config, self._n_threads)
