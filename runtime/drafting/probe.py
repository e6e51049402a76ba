"""Probes: logistic regressions on a model's last hidden state, as a bundle carries them.

A probe of the kind `DRAFT` says how likely a draft model's next token is the target model's, one of
the kind `JUDGE` how likely a drafted token is right that the target model would not have written.

Source: SpecDec++ (Huang et al., 2024) for `DRAFT`, judge decoding (Bachmann et al., 2025) for
`JUDGE`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError
from edgedec.models.fields import Fields
from edgedec.models.hidden_states import normed
from edgedec.models.manifest import PROBES_KEY
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows

DRAFT, JUDGE = PROBE_KINDS = ("draft", "judge")

N_STATS = 4
"""Numbers that a probe reads of a row's statistics."""

N_EXTRA = {DRAFT: 0, JUDGE: 1}
"""Numbers besides: `JUDGE` reads the log-probability of the drafted token."""

_STORED = np.dtype("<f4")
_LEAST = 1e-4
"""Least probability of all tokens but the likeliest, so that their odds are a number."""
_MOST_NATS = 30.0

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Probe:
    """A logistic regression.

    kind: one of `PROBE_KINDS`. model: fingerprint of the model whose rows it reads. other: of the
    model whose choices these are about. layer: whose hidden states it reads. epsilon: of their
    norm. facts: what it was fitted on and how good it is, JSON-ready.

    Shapes: weights [hidden_size + N_STATS + N_EXTRA].
    """

    kind: str
    model: str
    other: str
    weights: Float32
    bias: float
    layer: int
    epsilon: float
    facts: Mapping[str, Any]

    def chances(self, inputs: Float32) -> Float32:
        """Returns how likely each row is right, 0 to 1. Shapes: inputs [T, F], result [T]."""
        odds = np.clip(inputs @ self.weights + np.float32(self.bias), -_MOST_NATS, _MOST_NATS)
        result: Float32 = 1 / (1 + np.exp(-odds))
        return result

    def chance(self, rows: Rows, index: int, log_prob: float | None = None) -> float:
        """Returns how likely what the asked row ``index`` is about is right, 0 to 1.

        rows: of one pass, with the hidden states of its last tokens, whose rows were asked for.
        log_prob: of the drafted token, for `JUDGE`. Units: nats.
        """
        hidden = rows.hidden[self.layer]
        at = len(hidden) - len(rows.stats.argmax) + index
        extra = None if log_prob is None else np.array([[log_prob]], np.float32)
        one = rows.stats.part(slice(index, index + 1))
        inputs = probe_inputs(hidden[at : at + 1], one, self.epsilon, extra)
        return float(self.chances(inputs)[0])

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields that `read` reads back."""
        stored = base64.b64encode(self.weights.astype(_STORED).tobytes()).decode()
        fields = {"model": self.model, "other": self.other, "weights": stored, "bias": self.bias}
        return {**fields, **self.facts}

    @classmethod
    def read(cls, kind: str, fields: Fields, config: ModelConfig) -> Self:
        """Returns the probe that a manifest states for a model with ``config``.

        Raises:
            BundleError: It is none for such a model.
        """
        weights, bias = _numbers(fields), fields.number("bias")
        n_inputs = config.hidden_size + N_STATS + N_EXTRA[kind]
        if len(weights) != n_inputs or not np.isfinite([*weights, bias]).all():
            fields.refuse_with("weights", f"are {len(weights)} numbers, expected {n_inputs}")
        stated = {"model", "other", "weights", "bias"}
        facts = {key: value for key, value in fields.values.items() if key not in stated}
        return cls(
            kind, fields.text("model"), fields.text("other"), weights, bias, config.n_layers,
            config.rms_norm_eps, facts,
        )  # fmt: skip


Known = tuple[str, ModelConfig]
"""Fingerprint and configuration of a model."""


def read_probes(defaults: Mapping[str, Any], target: Known, draft: Known) -> dict[str, Probe]:
    """Returns the probes that a manifest's defaults hold for this pair of models, by kind.

    Raises:
        BundleError: What they hold are no probes.
    """
    advice = "run `edgedec train probe` on the bundle again"
    name, held = "manifest.defaults", {PROBES_KEY: defaults.get(PROBES_KEY)}
    probes = {}
    for kind, fields in Fields(held, name, BundleError, advice).tables(PROBES_KEY):
        if kind not in PROBE_KINDS:
            fields.refuse_with(None, f"is unknown, expected {' or '.join(PROBE_KINDS)}")
        read, other = (draft, target) if kind == DRAFT else (target, draft)
        if (fields.text("model"), fields.text("other")) == (read[0], other[0]):
            probes[kind] = Probe.read(kind, fields, read[1])
    return probes


def probe_inputs(
    hidden: Float32, stats: RowStats, epsilon: float, extra: Float32 | None = None
) -> Float32:
    """Returns what a probe reads of rows.

    Shapes: hidden [T, D], extra [T, N_EXTRA], result [T, D + N_STATS + N_EXTRA].
    """
    logs = (stats.top_logits[:, :2] - stats.log_sum_exp[:, None]).astype(np.float64)
    first = np.exp(np.minimum(logs[:, 0], 0))
    odds = logs[:, 0] - np.log(np.maximum(1 - first, _LEAST))
    gap = np.minimum(logs[:, 0] - logs[:, 1], _MOST_NATS)
    read = np.stack([odds, gap, stats.entropy, first], axis=1).astype(np.float32)
    parts = [normed(hidden, epsilon), read, *([] if extra is None else [extra])]
    return np.concatenate(parts, axis=1)


def _numbers(fields: Fields) -> Float32:
    try:
        content = base64.b64decode(fields.text("weights"), validate=True)
        return np.frombuffer(content, _STORED).astype(np.float32)
    except (binascii.Error, ValueError):
        fields.refuse_with("weights", "are no base64 of 32-bit numbers")
