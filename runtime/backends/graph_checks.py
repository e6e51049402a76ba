"""What is checked of a graph, whoever runs it, and what others say of it in one line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError
from edgedec.models.fields import shown
from edgedec.models.graph import STATE_PLACE, STATE_WALK, STATES, GraphContract, state_port

_MAX_NAMES = 8  # listed in a message


def check_names(graph: Path, what: str, names: Collection[str], expected: Collection[str]) -> None:
    """Raises a BundleError unless the names ``names`` in ``graph`` are those ``expected``."""
    if set(names) != set(expected):
        raise BundleError(
            f"{graph} has {what} {_listed(names)}, the manifest states {_listed(expected)}: "
            "export the model again"
        )


def check_shape(
    graph: Path,
    name: str,
    shape: Sequence[int | str | None],
    expected: Sequence[int | None] | None,
) -> None:
    """Raises a BundleError where the shape of ``name`` is not what the configuration makes it.

    found: sizes; what is no number varies. expected: sizes, None for any; None for any shape.
    """
    if expected is None:
        return
    both = zip(shape, expected, strict=False)
    if len(shape) != len(expected) or any(_differ(*sizes) for sizes in both):
        raise BundleError(
            f"{graph} has {name} of shape {_shape_text(shape)}, the manifest's "
            f"config makes it {_shape_text(expected)}: export the model again"
        )


def check_recurrent_layers(graph: Path, contract: GraphContract, config: ModelConfig) -> None:
    """Raises a BundleError unless the contract states the recurrent layers and their states."""
    recurrent = contract.kv.recurrent_layers
    if recurrent != config.recurrent_layers:
        raise BundleError(
            f"{graph} keeps a state in the layers {list(recurrent)}, the recurrent ones are "
            f"{list(config.recurrent_layers)}: export the model again"
        )
    is_in_place = contract.kv.kind == "panels"
    needed = (STATES, STATE_PLACE) if is_in_place else (*STATE_WALK, *map(state_port, recurrent))
    for name in needed if config.recurrence.has_states else ():
        if name not in contract.inputs:
            raise BundleError(
                f"{graph} lacks the input {name}, which its recurrent layers need: export the "
                "model again"
            )


def one_line(error: Exception) -> str:
    """Returns the message of ``error`` on one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."


def _differ(size: int | str | None, expected: int | None) -> bool:
    return isinstance(size, int) and expected is not None and size != expected


def _shape_text(shape: Sequence[int | str | None]) -> str:
    """Returns a shape in which sizes that vary are question marks."""
    return f"[{', '.join(str(n) if isinstance(n, int) else '?' for n in shape)}]"


def _listed(names: Collection[str]) -> str:
    more = ", ..." if len(names) > _MAX_NAMES else ""
    return f"[{', '.join(shown(name) for name in sorted(names)[:_MAX_NAMES])}{more}]"
