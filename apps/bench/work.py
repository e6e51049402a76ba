"""What a pass must do at least, and how long this machine needs for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from edgedec.apps.bench.jobs import Test
from edgedec.kernels import cpu
from edgedec.models.blocks import head_weight
from edgedec.models.families import weight_shapes
from edgedec.models.layer_inputs import LAYER_TABLE
from edgedec.models.model_entry import ModelEntry


@dataclass(frozen=True)
class Work:
    """Bytes a pass reads once, and multiply-accumulates per row.

    weight_bytes: of experts those that one row chooses; rows that choose others read more.
    layer_macs: of the layers, for each row. head_macs: of the LM head, for each row with logits.
    kv_bytes: of the KV cache, for each token already in it, of layers that look at all.
    window_bytes: the same of layers with a window, by the tokens that these look back at.
    """

    weight_bytes: int
    layer_macs: int
    head_macs: int
    kv_bytes: int
    window_bytes: Mapping[int, int] = field(default_factory=dict)

    def of(self, test: Test) -> tuple[int, int]:
        """Returns the bytes and multiply-accumulates of a prefill, a decoded token or a verify."""
        rows = 1 if test.kind == "tg" else test.n
        logit_rows = test.n if test.kind == "verify" else 1
        n_bytes = self.weight_bytes // test.n_texts + test.depth * self.kv_bytes
        n_bytes += sum(min(test.depth, n) * size for n, size in self.window_bytes.items())
        return n_bytes, rows * self.layer_macs + logit_rows * self.head_macs


@dataclass(frozen=True)
class Bound:
    """The least time a test can take. limit: ``read`` or ``int8``, whichever is slower."""

    seconds: float
    limit: str


def read_work(entry: ModelEntry) -> Work | None:
    """Returns the work of a model, or None unless its weights are packed for our kernels."""
    if entry.contract.kv.kind != "panels":
        return None
    config = entry.config
    head = head_weight(config)
    n_bytes, layer_macs, head_macs = 0, 0, 0
    for name, shape in weight_shapes(config).items():
        is_table = name == LAYER_TABLE or (name == "embed_tokens.weight" and name != head)
        if len(shape) != 2 or is_table:
            continue
        n, k = shape
        n_all, n_used = (config.n_experts, config.n_experts_used) if ".experts." in name else (1, 1)
        fmt = entry.format_of(name).index
        n_bytes += n_used * cpu.packed_nbytes(fmt, n // n_all, k)
        if name == head:
            head_macs = n * k
        else:
            layer_macs += n_used * (n // n_all) * k
    of_layer = entry.contract.kv.row_nbytes // len(config.kv_layers)
    layers = map(config.layer, range(config.n_layers))
    readers = [layer for layer in layers if layer.has_attention]
    windows = Counter(layer.window - 1 for layer in readers if layer.window)
    return Work(
        n_bytes,
        layer_macs,
        head_macs,
        of_layer * (len(readers) - windows.total()),
        {n: of_layer * n_layers for n, n_layers in windows.items()},
    )


def bound(work: Work, test: Test, read_gb_s: float, int8_gmac_s: float) -> Bound:
    """Returns the least time ``test`` can take on a machine with these limits."""
    n_bytes, macs = work.of(test)
    read_s, multiply_s = 1e-9 * n_bytes / read_gb_s, 1e-9 * macs / int8_gmac_s
    return Bound(read_s, "read") if read_s >= multiply_s else Bound(multiply_s, "int8")
