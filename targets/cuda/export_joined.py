"""Matrices that read the same rows, joined to one: a launch computes the products with all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgedec.models.config import ModelConfig
from edgedec.targets.cuda.export_products import StoredMatrix


def join(
    config: ModelConfig, matrices: dict[str, StoredMatrix]
) -> tuple[dict[str, StoredMatrix], dict[str, tuple[str, ...]]]:
    """Returns ``matrices``, some of them joined, and of which those consist.

    Only matrices that are stored alike are joined.
    """
    kept, joined = dict(matrices), dict[str, tuple[str, ...]]()
    for name, parts in _candidates(config):
        if not all(part in matrices for part in parts):
            continue
        parts_ = [matrices[part] for part in parts]
        if len({replace(matrix, n=0) for matrix in parts_}) == 1:
            joined[name] = parts
            kept[name] = replace(parts_[0], n=sum(matrix.n for matrix in parts_))
            for part in parts:
                del kept[part]
    return kept, joined


def bias_name(matrix: str) -> str:
    """Returns the name of the bias of ``matrix``."""
    return f"{matrix.removesuffix('.weight')}.bias"


def _candidates(config: ModelConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the name of each joined matrix, and those that it may consist of."""
    for layer in range(config.n_layers):
        attention, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        if not config.has_qk_norm:
            parts = tuple(f"{attention}.{name}_proj.weight" for name in "qkv")
            yield f"{attention}.qkv_proj.weight", parts
        yield f"{mlp}.gate_up_proj.weight", (
            f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight",
        )  # fmt: skip
