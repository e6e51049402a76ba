"""Trains a draft head on features: what it is shown, its loss, and how often it is right."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from edgedec.models.errors import ConfigError
from edgedec.training.batches import shuffled_batches
from edgedec.training.features.feature_file import TextFeatures, parted
from edgedec.training.heads.torch_head import TorchWeights
from edgedec.training.losses import Loss, cross_entropy
from edgedec.training.progress_file import ProgressFile
from edgedec.training.torch_ops import has_fast_bfloat16

_SAVE_S = 60.0
"""Seconds of training that a kill may lose."""

_LARGEST_RATE = 1e30  # which a float32 can hold

Float32 = npt.NDArray[np.float32]


class OnProgress(Protocol):
    """Called with what is going on, steps done of how many, and their figures so far."""

    def __call__(self, phase: str, done: int, total: int, detail: str = "") -> None: ...


@dataclass(frozen=True)
class TrainingPlan:
    """How a head is trained.

    n_epochs: times that each text is shown. n_steps: of training-time test, each on the outputs of
    the one before. step_share: what a step's loss counts of the one before. seed: of the order of
    texts and of the weights that begin at random. batch: texts of a step, or pieces of texts.
    """

    n_epochs: int = 6
    n_steps: int = 3
    step_share: float = 0.8
    learning_rate: float = 1e-3
    warmup: float = 0.05
    batch: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate <= _LARGEST_RATE:
            raise ConfigError(
                f"--learning-rate is {self.learning_rate}, expected more than 0 and at most "
                f"{_LARGEST_RATE:g}: leave it out for the default"
            )


@dataclass(frozen=True)
class HeadAccuracy:
    """Shares of the model's own choices that a head finds, by depth; and that its tokens cover.

    by_kind: of the next token alone, by kind of text.
    """

    by_depth: tuple[float, ...]
    covered: float
    by_kind: dict[str, float]


@dataclass(frozen=True)
class Trained:
    """The best weights of a training, by name, and what they were measured at.

    before: share of the next tokens that was found before anything was trained, where that was
    asked; else None.
    """

    weights: dict[str, Float32]
    measured: HeadAccuracy
    is_finite: bool
    before: float | None = None


@dataclass(frozen=True)
class TrainingTexts:
    """Texts to train on, and others to measure with.

    token_ids: rising, those of the embedding's rows. head_ids: rising, those of the logits.
    """

    trained: Sequence[TextFeatures]
    held_out: Sequence[TextFeatures]
    token_ids: npt.NDArray[np.int64]
    head_ids: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls, texts: Sequence[TextFeatures], n_logits: int, always: Sequence[int]
    ) -> TrainingTexts:
        """Returns ``texts``, some of them held out. always: tokens that the head keeps.

        Raises:
            ConfigError: There are too few texts.
        """
        trained, held_out = parted(texts)
        mass: dict[int, float] = {}
        for text in trained:
            ids, where = np.unique(text.top_ids, return_inverse=True)
            sums = np.bincount(where.ravel(), text.top_probs.astype(np.float64).ravel())
            for token, share in zip(ids.tolist(), sums.tolist(), strict=True):
                mass[token] = mass.get(token, 0.0) + share
        ranked = sorted((t for t in mass if t >= 0 and t not in always), key=lambda t: -mass[t])
        chosen = [*always, *ranked[: max(0, n_logits - len(always))]]
        tokens = np.unique(np.concatenate([text.tokens for text in texts]))
        return cls(trained, held_out, tokens.astype(np.int64), np.sort(np.array(chosen, np.int64)))

    @property
    def n_tokens(self) -> int:
        """Tokens to train on."""
        return sum(len(text.tokens) for text in self.trained)

    def in_pieces(self, n_tokens: int) -> TrainingTexts:
        """Returns the same with texts to train on that are cut into pieces of ``n_tokens``.

        The last token of one is the first of the next, for of its first token a piece has nothing
        that light heads could learn from.
        """
        pieces = [
            text.piece(start, start + n_tokens)
            for text in self.trained
            for start in range(0, len(text.tokens) - 1, n_tokens - 1)
        ]
        return dataclasses.replace(self, trained=pieces)


@dataclass
class Batch:
    """Texts side by side. targets: likeliest tokens as places in ``head_ids``, -1 for others."""

    tokens: Tensor
    hidden: Tensor
    targets: Tensor
    probs: Tensor
    is_real: Tensor


class Trainer:
    """One training, step by step. Its state is in a file, from which the same one goes on."""

    def __init__(
        self,
        head: TorchWeights,
        training_texts: TrainingTexts,
        plan: TrainingPlan,
        file: ProgressFile,
        is_start_worth_keeping: bool = False,
        loss: Loss = cross_entropy,
    ) -> None:
        """is_start_worth_keeping: ``head`` is a trained one, kept if training makes none better."""
        self._loss_of = loss
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._head = head.to(self._device)
        self._training_texts = training_texts
        self._plan = plan
        self._file = file
        self._n_batches = -(-len(training_texts.trained) // plan.batch)
        self._n_total = plan.n_epochs * self._n_batches
        params = list(head.trained().values())
        self._optimizer = torch.optim.AdamW(
            params, plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
        )
        self._step = 0
        self._batches: list[list[int]] = []  # of this epoch
        self._best: tuple[dict[str, Float32], HeadAccuracy] | None = None
        self._before: float | None = None
        self._is_start_worth_keeping = is_start_worth_keeping

    def train(self, report: OnProgress, is_over: Callable[[], bool]) -> Trained:
        """Trains to the end, or until ``is_over``; returns the best weights.

        Raises:
            ConfigError: The loss was no number before anything was worth keeping.
            OSError: The disk is full.
        """
        self._load()
        if self._step == 0 and self._is_start_worth_keeping:
            self._before = self._measure()
        saved_s, is_finite = time.monotonic(), True
        while self._step < self._n_total and not is_over():
            loss = self._train_step()
            if not math.isfinite(loss):
                is_finite = False
                break
            self._step += 1
            report("train", self._step, self._n_total, self._standing(loss))
            if self._step % self._n_batches == 0:
                self._measure()
            if time.monotonic() - saved_s > _SAVE_S or self._step % self._n_batches == 0:
                self._save()
                saved_s = time.monotonic()
        if is_finite:
            self._save()
            if self._best is None or self._step % self._n_batches:
                self._measure()  # what the last epoch came to
        if self._best is None:
            raise ConfigError(
                "the loss of the first epoch is NaN or infinite: use a smaller --learning-rate"
            )
        weights, measured = self._best
        return Trained(weights, measured, is_finite, self._before)

    def _standing(self, loss: float) -> str:
        """Returns how the training stands, in words."""
        best = f", {self._in_words(self._best[1])}" if self._best else ""
        return f"loss {loss:.2f}{best}"

    def _in_words(self, measured: HeadAccuracy) -> str:
        """Returns what progress says of a measurement."""
        return f"held out {measured.by_depth[0]:.1%}"

    def _train_step(self) -> float:
        epoch, at = divmod(self._step, self._n_batches)
        if not at or not self._batches:
            lengths = [len(text.tokens) for text in self._training_texts.trained]
            rng = np.random.default_rng((self._plan.seed, epoch))
            self._batches = shuffled_batches(lengths, self._plan.batch, rng)
        batch = self._batch([self._training_texts.trained[i] for i in self._batches[at]])
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.learning_rate * self._schedule()
        loss = self._loss(batch)
        value = float(loss.detach())
        if math.isfinite(value):
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._head.trained().values(), 1.0)
            self._optimizer.step()
        return value

    def _schedule(self) -> float:
        n_total = self._n_total
        warm = min(1.0, (self._step + 1) / n_total / self._plan.warmup)
        return warm * 0.5 * (1 + math.cos(math.pi * self._step / n_total))

    def _loss(self, batch: Batch) -> Tensor:
        """Returns the distance from what the model says, over all steps."""
        plan, total, weight = self._plan, torch.zeros((), device=self._device), 0.0
        with _half_precision(self._device):
            logits = self._head(batch.tokens, batch.hidden, plan.n_steps)
        known = batch.targets, batch.probs * (batch.targets >= 0), batch.is_real
        for step, of_step in enumerate(logits):
            share = plan.step_share**step
            log_probs = functional.log_softmax(of_step.float(), -1)
            first = batch.tokens.shape[1] - of_step.shape[1]
            targets, p, is_real = (part[:, first:] for part in known)
            chosen = log_probs.gather(-1, targets.clamp(min=0))
            total = total + share * self._loss_of(chosen, p, is_real)
            weight += share
        return total / weight

    @torch.no_grad()
    def _measure(self) -> float:
        """Measures with the texts held out; keeps the weights if they are the best so far.

        Returns the share of the next tokens that is found.
        """
        measured = self._measured()
        if self._best is None or measured.by_depth[0] > self._best[1].by_depth[0]:
            weights = {name: _array(p).copy() for name, p in self._head.learned().items()}
            self._best = weights, measured
        return measured.by_depth[0]

    def _measured(self) -> HeadAccuracy:
        """Returns what is found of the texts held out."""
        return measure(self._head, self._training_texts, self._plan.n_steps, self._batch)

    def _batch(self, texts: Sequence[TextFeatures]) -> Batch:
        training_texts, n = self._training_texts, max(len(text.tokens) for text in texts)

        def stacked(arrays: Iterator[npt.NDArray[Any]], fill: float = 0) -> Tensor:
            padded = [
                np.pad(a, [(0, n - len(a)), *[(0, 0)] * (a.ndim - 1)], constant_values=fill)
                for a in arrays
            ]
            return torch.from_numpy(np.stack(padded)).to(self._device)

        places = (np.searchsorted(training_texts.token_ids, text.tokens) for text in texts)
        return Batch(
            stacked(places),
            stacked(text.hidden.astype(np.float32) for text in texts),
            stacked((_places(training_texts.head_ids, text.top_ids) for text in texts), -1),
            stacked(text.top_probs.astype(np.float32) for text in texts),
            stacked(np.ones(len(text.tokens), np.float32) for text in texts),
        )

    def _save(self) -> None:
        arrays: dict[str, npt.NDArray[Any]] = {"step": np.array(self._step)}
        if self._before is not None:
            arrays["before"] = np.array(self._before)
        for name, p in self._head.trained().items():
            arrays[f"now/{name}"] = _array(p)
            for key, value in self._optimizer.state[p].items():
                arrays[f"{key}/{name}"] = _array(value)
        if self._best is not None:
            weights, measured = self._best
            arrays |= {f"best/{name}": values for name, values in weights.items()}
            arrays["by_depth"] = np.array(measured.by_depth)
            arrays["covered"] = np.array(measured.covered)
            arrays["kinds"] = np.array(list(measured.by_kind) or [""])
            arrays["by_kind"] = np.array(list(measured.by_kind.values()) or [0.0])
        self._file.save(arrays)

    def _load(self) -> None:
        """Goes on from the file, if there is one of this training."""
        if (state := self._file.load()) is None:
            return
        for name, p in self._head.trained().items():
            with torch.no_grad():
                p.copy_(torch.from_numpy(state[f"now/{name}"]))
            keys = ("step", "exp_avg", "exp_avg_sq")
            if f"exp_avg/{name}" in state:
                self._optimizer.state[p] = {
                    key: torch.tensor(state[f"{key}/{name}"], device=self._device) for key in keys
                }
        self._step = int(state["step"])
        self._before = float(state["before"]) if "before" in state else None
        if "by_depth" in state:
            weights = {name: state[f"best/{name}"] for name in self._head.trained()}
            by_kind = dict(zip(state["kinds"].tolist(), state["by_kind"].tolist(), strict=True))
            depths = tuple(state["by_depth"].tolist())
            self._best = weights, HeadAccuracy(depths, float(state["covered"]), by_kind)


def measure(
    head: TorchWeights,
    training_texts: TrainingTexts,
    n_steps: int,
    batch_of: Callable[[Sequence[TextFeatures]], Batch],
) -> HeadAccuracy:
    """Returns how often ``head`` finds the model's own choice in the texts held out."""
    n_right, n_asked = np.zeros(n_steps), np.zeros(n_steps)
    kinds: dict[str, list[int]] = {}
    n_covered = n_tokens = 0
    for text in training_texts.held_out:
        batch = batch_of([text])
        with _half_precision(batch.hidden.device):
            logits = head(batch.tokens, batch.hidden, n_steps)
        targets = batch.targets[0, :, 0]
        right = [
            of_step[0].argmax(-1) == targets[len(targets) - of_step.shape[1] :]
            for of_step in logits
        ]
        n_covered += int((targets >= 0).sum())
        n_tokens += len(targets)
        counts = kinds.setdefault(text.kind, [0, 0])
        counts[0] += int(right[0].sum())
        counts[1] += len(right[0])
        for step, of_step in enumerate(right):
            n_right[step] += int(of_step.sum())
            n_asked[step] += len(of_step)
    return HeadAccuracy(
        tuple((n_right / np.maximum(n_asked, 1)).tolist()),
        n_covered / max(1, n_tokens),
        {kind: right / n for kind, (right, n) in sorted(kinds.items())},
    )


def _places(ids: npt.NDArray[np.int64], targets: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Returns the places of ``targets`` among rising ``ids``, -1 for those that are not there."""
    places = np.minimum(np.searchsorted(ids, targets), len(ids) - 1)
    return np.where(ids[places] == targets, places, -1)


def _array(values: Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = values.detach().cpu().numpy()
    return array


def _half_precision(device: torch.device) -> torch.autocast:
    """Returns a block that multiplies in bfloat16, where the processor does that itself."""
    return torch.autocast(device.type, torch.bfloat16, enabled=has_fast_bfloat16(device))
