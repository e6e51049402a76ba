"""Which matrices read the output of a norm, and nothing else does."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig
from edgedec.models.families import find_family

_OTHER = ""


class _Tracer(Ops[str]):
    """`Ops` whose values are the name of the norm they are the output of, or nothing."""

    def __init__(self) -> None:
        self.readers: dict[str, list[str]] = {}
        self._used_otherwise: set[str] = set()

    def rms_norm(self, x: str, weight: str) -> str:
        """Returns the norm's name."""
        self._use(x)
        self.readers[weight] = []
        return weight

    def linear(self, x: str, weight: str, bias: str | None = None) -> str:
        """Notes that ``weight`` reads the norm ``x``."""
        if x:
            self.readers[x].append(weight)
        return _OTHER

    def hidden(self, x: str, layer: int) -> None:
        """Notes that the norm ``x``, if it is one, is seen from outside."""
        self._use(x)

    def embed(self, weight: str) -> str:
        """Returns what is no norm; the other operators as well."""
        return _OTHER

    def head_norm(self, x: str, weight: str) -> str:
        """See `embed`."""
        return self._use(x)

    def unit_norm(self, x: str, size: int) -> str:
        """See `embed`."""
        return self._use(x)

    def scale_channels(self, x: str, weight: str) -> str:
        """See `embed`."""
        return self._use(x)

    def squared_relu(self, x: str) -> str:
        """See `embed`."""
        return self._use(x)

    def attention(self, q: str, k: str, v: str, layer: int) -> str:
        """See `embed`."""
        return self._use(q, k, v)

    def sink_attention(self, q: str, k: str, v: str, layer: int, sinks: str) -> str:
        """See `embed`."""
        return self._use(q, k, v)

    def recurrence(self, parts: Sequence[str], layer: int) -> str:
        """See `embed`."""
        return self._use(*parts)

    def rotate(self, x: str, n_heads: int) -> str:
        """See `embed`."""
        return self._use(x)

    def grow_queries(self, q: str) -> str:
        """See `embed`."""
        return self._use(q)

    def sigmoid_gate(self, x: str, gate: str) -> str:
        """See `embed`."""
        return self._use(x, gate)

    def gate(self, gate: str, up: str) -> str:
        """See `embed`."""
        return self._use(gate, up)

    def experts(self, x: str, router: str, prefix: str) -> str:
        """See `embed`."""
        return self._use(x, router)

    def clamped_experts(self, x: str, router: str, prefix: str) -> str:
        """See `embed`."""
        return self._use(x, router)

    def add(self, a: str, b: str) -> str:
        """See `embed`."""
        return self._use(a, b)

    def scale(self, x: str, factor: float) -> str:
        """See `embed`."""
        return self._use(x)

    def soft_cap(self, x: str, bound: float) -> str:
        """See `embed`."""
        return self._use(x)

    def suppress(self, logits: str) -> str:
        """See `embed`."""
        return self._use(logits)

    def select_rows(self, x: str) -> str:
        """Returns ``x``: its rows are the norm's, too."""
        return x

    def _use(self, *values: str) -> str:
        self._used_otherwise.update(filter(None, values))
        return _OTHER

    def names_by_norm(self) -> dict[str, tuple[str, ...]]:
        """Returns the matrices of each norm that matrices alone read."""
        return {
            norm: tuple(names)
            for norm, names in self.readers.items()
            if names and norm not in self._used_otherwise
        }


def norm_readers(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Returns the names of the matrices that read each norm, where nothing else reads it."""
    tracer = _Tracer()
    find_family(config.family).recipe(tracer, config)
    return tracer.names_by_norm()
