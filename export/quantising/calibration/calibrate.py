"""Matrices quantised one after the other, each on what the model so far computes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from edgedec.export.quantising.calibration.compensate import GROUP, Moments, round_compensated
from edgedec.export.quantising.calibration.norm_readers import norm_readers
from edgedec.export.quantising.calibration.rows import SideBySideOps
from edgedec.export.quantising.calibration.scaling import Scaled, scale_for
from edgedec.export.quantising.calibration.scores import Scores, score
from edgedec.export.quantising.calibration.texts import CalibrationTexts
from edgedec.export.quantising.quantise import Quantized
from edgedec.models.families import find_family, matrices
from edgedec.models.quant import PlainTensor, QuantFormat, ScaleKind
from edgedec.models.weights import float_rows
from edgedec.system.files import replacing

Floats = npt.NDArray[np.float32]
OnProgress = Callable[[int, int], None]

_KINDS = (ScaleKind.SINGLE, ScaleKind.ONE_MIN)


class Finished:
    """Matrices that an earlier, interrupted calibration left in a folder."""

    def __init__(self, folder: Path, key: str) -> None:
        """Uses what is in ``folder`` if it was made for ``key``."""
        self._folder = folder
        self._key = hashlib.sha256(key.encode()).hexdigest()[:16]

    def load(self, name: str, fmt: QuantFormat) -> PlainTensor | None:
        """Returns the matrix ``name``, None if it is not there or damaged."""
        arrays = self._load(name, ("codes", "scale", "minimum"))
        return None if arrays is None else PlainTensor(fmt, *arrays)

    def save(self, name: str, tensor: PlainTensor) -> None:
        """Keeps the matrix ``name``."""
        self._save(name, codes=tensor.codes, scale=tensor.scale, minimum=tensor.minimum)

    def load_vector(self, name: str) -> Floats | None:
        """Returns the numbers kept for ``name``, None if they are not there or damaged."""
        arrays = self._load(name, ("vector",))
        return None if arrays is None else arrays[0]

    def save_vector(self, name: str, vector: Floats) -> None:
        """Keeps numbers for ``name``: what a norm is divided by, what a matrix costs."""
        self._save(name, vector=vector)

    def _load(self, name: str, keys: Sequence[str]) -> list[Any] | None:
        try:
            with np.load(self._path(name), allow_pickle=False) as archive:
                return [archive[key] for key in keys]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None

    def _save(self, name: str, **arrays: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(name)) as file:
            np.savez(file, **arrays)

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._key}.{name}.npz"


class Calibration:
    """One run through a model that quantises its matrices as they are reached."""

    def __init__(
        self,
        source: Scaled,
        quantised: Quantized,
        finished: Finished | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """quantised: that of ``source``, whose scales are chosen on the way."""
        self._source, self._quantised = source, quantised
        self._finished = finished
        self._report = on_progress or (lambda done, total: None)
        self._shapes = matrices(source.config)
        self._readers = norm_readers(source.config)
        self._n_done = 0
        self._inputs: Floats | None = None
        self._moments: Moments | None = None

    def compute_scores(self, texts: CalibrationTexts) -> Scores:
        """Fills the quantised model; returns how it does on the text held out."""
        config = self._source.config
        ops = SideBySideOps(
            self._source,
            self._quantised,
            texts.texts,
            [texts.held_out],
            self._reach,
            self._scale,
        )
        logits = find_family(config.family).recipe(ops, config)
        self._inputs = self._moments = None
        n = len(texts.held_out)
        return score(logits[:n], logits[n:], texts.held_out)

    def _scale(self, norm: str, outputs: Floats) -> Floats | None:
        """Returns what ``norm`` is divided by from now on, if that can be made up for."""
        readers = {name: self._quantised.format(name) for name in self._readers.get(norm, ())}
        if not readers or not all(self._is_compensated(*reader) for reader in readers.items()):
            return None
        scale = self._finished.load_vector(norm) if self._finished else None
        if scale is None or scale.shape != outputs.shape[1:]:
            scale = scale_for(outputs)
            if self._finished:
                self._finished.save_vector(norm, scale)
        self._source.scale(norm, tuple(readers), scale)
        return scale

    def _reach(self, name: str, inputs: Floats) -> None:
        n, k = self._shapes[name]
        fmt = self._quantised.format(name)
        if name not in self._quantised and self._is_compensated(name, fmt):
            tensor = self._finished.load(name, fmt) if self._finished else None
            if tensor is None or tensor.shape != (n, k):
                weights = float_rows(self._source, name, 0, n)
                tensor = round_compensated(weights, self._moments_of(inputs), fmt)
                if self._finished:
                    self._finished.save(name, tensor)
            self._quantised.put(name, tensor)
        self._n_done += n * k
        self._report(self._n_done, sum(n * k for n, k in self._shapes.values()))

    def _is_compensated(self, name: str, fmt: QuantFormat) -> bool:
        is_quantised = fmt != self._source.format(name) and fmt.kind in _KINDS
        return is_quantised and name != "embed_tokens.weight" and not self._shapes[name][1] % GROUP

    def _moments_of(self, inputs: Floats) -> Moments:
        """Returns the moments of ``inputs``, kept for other matrices that read the same."""
        last = self._inputs
        is_same = last is not None and last.shape == inputs.shape and np.shares_memory(last, inputs)
        if self._moments is None or not is_same:
            self._inputs = inputs
            self._moments = Moments.of(inputs.T @ inputs / np.float32(len(inputs)))
        return self._moments
