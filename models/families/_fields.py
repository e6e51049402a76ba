"""Typed reading of configuration keys, and what Hugging Face configs of decoders share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.models.config import ModelConfig, RopeScaling
from edgedec.models.errors import CheckpointError, UnsupportedModelError


@dataclass(frozen=True)
class Fields:
    """Keys of a foreign configuration, read with their types.

    An absent key and an explicit null read the same: as ``default``, or as an error without one.
    """

    values: Mapping[str, Any]
    origin: str = "config.json"

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._wrong(key, "a value without bounds", "a finite number")
        return number

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def table(self, key: str) -> Fields:
        """Returns the nested table ``key``; an absent one is empty."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, value, "a table")
        return Fields(value, f"{self.origin}: {key}")

    def refuse(self, key: str, *harmless: Any) -> None:
        """Raises UnsupportedModelError unless ``key`` is absent or one of ``harmless``."""
        value = self.values.get(key)
        is_plain = isinstance(value, bool | int | float | str)
        if value is not None and not (is_plain and value in harmless):
            raise UnsupportedModelError(
                f"{self.origin}: {key} is {_short(value)}, only {_either(harmless)} is supported"
            )

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self.origin}: {key} is missing")
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.origin}: {key} is {_short(value)}, expected {expected}")


def _short(value: Any) -> str:
    """Returns ``value`` as one line of at most 60 characters."""
    if hasattr(value, "__len__") and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _either(values: tuple[Any, ...]) -> str:
    return " or ".join(repr(value) for value in values) or "its absence"


def hf_decoder(fields: Fields, family: str, has_qkv_bias: bool) -> ModelConfig:
    """Returns the config of a pre-norm gated decoder from Hugging Face's usual keys."""
    fields.refuse("hidden_act", "silu")
    fields.refuse("mlp_bias", False)
    fields.refuse("partial_rotary_factor", 1, 1.0)
    if fields.get("quantization_config") is not None:
        method = fields.table("quantization_config").text("quant_method", "unknown")
        raise UnsupportedModelError(
            f"{fields.origin}: quantization_config {method!r} cannot be read; "
            f"use the float checkpoint or a GGUF file"
        )
    hidden_size, n_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    theta, scaling = hf_rope(fields)
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        n_layers=fields.integer("num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", n_heads),
        head_size=fields.integer("head_dim", hidden_size // max(n_heads, 1)),
        max_positions=fields.integer("max_position_embeddings", 2048),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        has_qkv_bias=has_qkv_bias,
        is_head_tied=fields.flag("tie_word_embeddings", False),
    )


def hf_rope(fields: Fields) -> tuple[float, RopeScaling]:
    """Returns base and scaling of the rotary frequencies.

    Reads ``rope_theta`` with ``rope_scaling`` (transformers 4) and ``rope_parameters`` (5).
    """
    key = "rope_parameters" if fields.get("rope_parameters") is not None else "rope_scaling"
    rope = fields.table(key)
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    rope.refuse("partial_rotary_factor", 1, 1.0)
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling("linear", factor=_positive(rope, "factor"))
    if kind == "llama3":
        low, high = _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor")
        if high <= low:
            raise CheckpointError(
                f"{rope.origin}: high_freq_factor {high} is not above low_freq_factor {low}"
            )
        return theta, RopeScaling(
            "llama3",
            factor=_positive(rope, "factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_positions=rope.integer("original_max_position_embeddings"),
        )
    raise UnsupportedModelError(
        f"{rope.origin}: RoPE scaling {_short(kind)} is not supported; known: default, linear, "
        f"llama3"
    )


def _positive(fields: Fields, key: str) -> float:
    value = fields.number(key)
    if value <= 0:
        raise CheckpointError(f"{fields.origin}: {key} is {value}, expected a positive number")
    return value


def hf_names(weights: list[str]) -> dict[str, str]:
    """Returns our name -> Hugging Face name, which adds ``model.`` to all but the LM head."""
    return {name: name if name == "lm_head.weight" else f"model.{name}" for name in weights}
