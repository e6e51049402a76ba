"""Packages of Core ML against the reference: every family's blocks, trees, and sizes of passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import matrices
from edgedec.models.quant import FORMATS
from edgedec.models.reference import ReferenceModel
from edgedec.models.static_passes import PREFILL, SPARE_ROWS, parts_of_pass
from edgedec.models.weights import WeightSource

pytest.importorskip("coremltools")
from edgedec.targets.coreml.export_emit import emit_mil
from edgedec.targets.coreml.export_package import WEIGHTS, write_package
from edgedec.targets.coreml.export_runner import PackageRunner
from edgedec.targets.coreml.export_weights import Weights

CONTEXT = 16
FLOAT16 = 1e-2
"""Error of a row of logits over the row, by their lengths, rounding every value to float16."""

PREFIX = [3, 14, 15, 9]
TREE, PARENTS = [26, 5, 35, 8, 9, 79, 32, 38, 4, 62], [-1, 0, 0, 1, -1, 4, 3, 6, 7, 8]

LAYERS = [
    {"intermediate_size": 48, "rope_theta": 10000.0, "window": 3},
    {"intermediate_size": 40, "rope_theta": 0.0},
    {"intermediate_size": 48, "rope_theta": 500.0},
]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"has_qkv_bias": True, "is_head_tied": True},
    "qwen3": {"has_qk_norm": True},
    "gemma2": {
        "has_post_norms": True,
        "activation": "gelu_tanh",
        "attention_softcap": 2.0,
        "logit_softcap": 3.0,
        "embedding_scale": 32**0.5,
        "layers": LAYERS,
    },
}


def written(source: WeightSource, folder: Path, hidden: tuple[int, ...] = ()) -> PackageRunner:
    """Returns the package of ``source`` in ``folder``, ready to run."""
    formats = dict.fromkeys(matrices(source.config), FORMATS["f32"])
    weights = Weights(source, formats, CONTEXT)
    write_package(emit_mil(source.config, CONTEXT, weights, hidden), folder)
    return PackageRunner(folder, CONTEXT + SPARE_ROWS)


def check(found: Any, expected: Any) -> None:
    """Checks every row against the reference's."""
    assert found.shape == expected.shape
    error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < FLOAT16


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("family", FAMILIES)
def test_trees_get_the_logits_of_the_reference(
    make_source: Callable[..., WeightSource], tmp_path: Path, family: str
) -> None:
    source = make_source(family=family, **FAMILIES[family])
    runner, reference = written(source, tmp_path, hidden=(1,)), ReferenceModel(source)
    expected = reference.forward(PREFIX).logits
    reference.commit(len(PREFIX))
    of_tree = reference.forward(TREE, PARENTS).logits
    chain = range(-1, len(PREFIX) - 1)
    check(runner.run_static(PREFILL, PREFIX, chain), expected[-1:])
    check(runner.compute_logits(PREFIX, chain), expected)
    check(runner.compute_logits(TREE, PARENTS, len(PREFIX)), of_tree)
    alone = [runner.compute_logits([token], [-1], i) for i, token in enumerate(PREFIX)]
    check(np.concatenate(alone), expected)


@pytest.mark.slow
def test_functions_share_their_weights(
    make_source: Callable[..., WeightSource], tmp_path: Path
) -> None:
    source = make_source()
    written(source, tmp_path)
    n_weights = sum(n * k for n, k in matrices(source.config).values())
    assert 2 * n_weights < (tmp_path / WEIGHTS).stat().st_size < 2.5 * n_weights


@pytest.mark.slow
def test_rows_of_large_numbers_stay_within_float16(
    make_source: Callable[..., WeightSource], tmp_path: Path
) -> None:
    """Squares of a residual stream of thousands do not fit; what is normed is divided first."""
    source = make_source()
    source.weights["embed_tokens.weight"] *= 2000  # type: ignore[attr-defined]
    expected = ReferenceModel(source).forward(PREFIX).logits
    check(written(source, tmp_path).compute_logits(PREFIX, range(-1, len(PREFIX) - 1)), expected)


def test_experts_are_refused(make_source: Callable[..., WeightSource]) -> None:
    source = make_source(family="qwen3_moe", has_qk_norm=True, n_experts=4, n_experts_used=2)
    with pytest.raises(UnsupportedModelError, match="export with --target cpu"):
        emit_mil(source.config, CONTEXT, Weights(source, {}, CONTEXT))


@pytest.mark.parametrize(
    ("n_rows", "asked", "expected"),
    [
        (1, [0], ["decode"]),
        (2, [1], ["verify"]),
        (16, [15], ["verify", "verify"]),
        (17, [16], ["prefill"]),
        (65, [64], ["prefill", "decode"]),
        (20, range(20), ["verify", "verify", "verify"]),
        (90, [88, 89], ["prefill", "verify", "verify", "verify", "verify"]),
    ],
)
def test_passes_are_cut_into_what_there_is(n_rows: int, asked: Any, expected: list[str]) -> None:
    found = list(parts_of_pass(n_rows, asked))
    assert [part.static.name for part in found] == expected
    assert [row for part in found for row in range(part.start, part.stop)] == [*range(n_rows)]
    for part in found:
        n_asked = sum(part.start <= row < part.stop for row in asked)
        assert n_asked <= part.static.n_logits
