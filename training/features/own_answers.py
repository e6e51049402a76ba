"""What a bundle's model says to prompts, many at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING

from edgedec.models.manifest import BundleManifest
from edgedec.training.features.feature_reader import WINDOW, Texts

if TYPE_CHECKING:
    from edgedec.training.features.batch_writer import BatchWriter
    from edgedec.training.features.feature_file import TextFeatures

_WRITTEN = 192


class OwnAnswers:
    """The target model of a bundle, as one that answers; it is read when first asked.

    layers: whose hidden states are kept. temperature: of its answers. n_threads: groups of prompts
    that are answered at once, each by a thread: most of the time goes into many small steps, which
    threads would share badly. is_over: ends answers where they are.
    """

    def __init__(
        self,
        bundle: Path,
        manifest: BundleManifest,
        layers: tuple[int, ...],
        temperature: float,
        n_threads: int,
        is_over: Callable[[], bool],
    ) -> None:
        self._bundle = bundle
        self._manifest = manifest
        self._layers = layers
        self._temperature = temperature
        self._n_threads = n_threads
        self._is_over = is_over
        self._is_closed = Event()

    def __call__(
        self,
        groups: Iterable[Sequence[list[int]]],
        first: int = 0,
        report: Callable[[int], None] = lambda n: None,
    ) -> Texts:
        """Yields the ends of prompts, each with its answer behind, and what the model showed.

        Groups are answered one beside the other and come one after the other; what a group's
        answers are depends on its number alone. first: number of the first group. report: called
        with the tokens that there are so far, prompts included.

        Raises:
            ConfigError: The model cannot be computed by torch.
        """
        from edgedec.training.features.batch_writer import one_torch_thread

        writer, count = self._writer, _Count(report)
        waiting: deque[Future[list[TextFeatures]]] = deque()
        with one_torch_thread(), ThreadPoolExecutor(self._n_threads) as pool:
            try:
                for seed, prompts in enumerate(groups, first):
                    waiting.append(pool.submit(self._answers, writer, prompts, seed, count.add))
                    if len(waiting) > self._n_threads:
                        yield from waiting.popleft().result()
                while waiting:
                    yield from waiting.popleft().result()
            finally:
                self._is_closed.set()

    def _answers(
        self,
        writer: BatchWriter,
        prompts: Sequence[list[int]],
        seed: int,
        report: Callable[[int], None],
    ) -> list[TextFeatures]:
        from edgedec.training.features.batch_writer import WritingPlan

        room = min(WINDOW, self._manifest.target.context)
        n_new = min(_WRITTEN, room // 2)
        stop_ids = frozenset(self._manifest.stop_token_ids)
        return writer.write(
            [prompt[n_new - room :] for prompt in prompts],
            WritingPlan(n_new, self._temperature, stop_ids, seed, self._layers),
            report,
            lambda: self._is_closed.is_set() or self._is_over(),
        )

    @cached_property
    def _writer(self) -> BatchWriter:
        from edgedec.export.heads.bundle_weights import BundleWeights
        from edgedec.training.features.batch_writer import BatchWriter

        target = self._manifest.target
        return BatchWriter(BundleWeights(self._bundle, target), target.config)


class _Count:
    """How many tokens there are, of all threads; ``report`` is called with it."""

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report = report
        self._n = 0
        self._counting = Lock()

    def add(self, n_more: int) -> None:
        with self._counting:
            self._n += n_more
            self._report(self._n)
