"""Quantisation of float rows: error bounds, formats, and the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.quantising import quantise as quantize
from edgedec.export.quantising.quantise import (
    SCHEMES,
    Even,
    Quantized,
    measure_errors,
    quantize_rows,
)
from edgedec.models.errors import CheckpointError, ConfigError
from edgedec.models.families import matrices
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat
from edgedec.models.weights import float_rows

Floats = npt.NDArray[np.float32]
FORMAT_NAMES = [name for name in SCHEMES.values() if name]


def relative_rms(values: Floats, name: str) -> float:
    got = quantize_rows(values, FORMATS[name]).dequantize()
    return float(np.sqrt(((got - values) ** 2).mean() / (values**2).mean()))


def draw(kind: str) -> Floats:
    rng = np.random.default_rng(1)
    values = {
        "normal": rng.standard_normal((64, 512)),
        "laplace": rng.laplace(size=(64, 512)),
        "shifted": rng.standard_normal((64, 512)) + 3,
        "small": rng.standard_normal((64, 512)) * 1e-3,
    }[kind]
    return values.astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "laplace", "shifted", "small"])
@pytest.mark.parametrize(
    ("name", "limit"),
    [("q8_0", 0.008), ("q8_1", 0.006), ("q4_0", 0.13), ("q4_1", 0.1), ("q3_nl", 0.25)],
)
def test_errors_stay_within_bounds(kind: str, name: str, limit: float) -> None:
    assert relative_rms(draw(kind), name) < limit


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0"])
@pytest.mark.parametrize("kind", ["normal", "laplace", "shifted"])
def test_search_is_no_worse_than_the_gguf_package(kind: str, name: str) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the dev extra")
    values, tensor_type = draw(kind), gguf.GGMLQuantizationType[name.upper()]
    theirs = gguf.quants.dequantize(gguf.quants.quantize(values, tensor_type), tensor_type)
    error = float(np.sqrt(((theirs - values) ** 2).mean() / (values**2).mean()))
    assert relative_rms(values, name) <= error * 1.001


def test_codes_are_those_of_the_nearest_levels() -> None:
    fmt = FORMATS["q3_nl"]
    values = draw("laplace")
    plain = quantize_rows(values, fmt)
    levels = np.array(fmt.levels, np.float32) - fmt.zero_point
    scale = np.repeat(plain.scale.astype(np.float32), 32, axis=1)
    distances = np.abs(values[..., None] - scale[..., None] * levels)
    np.testing.assert_allclose(
        np.abs(plain.dequantize() - values), distances.min(axis=-1), atol=1e-6
    )


def test_matrices_of_levels_are_the_same_in_more_bits(make_gguf: Callable[..., Any]) -> None:
    quantized = Quantized(open_checkpoint(str(make_gguf("llama"))), "int3")
    even, name = Even(quantized), "layers.1.mlp.down_proj.weight"
    assert (quantized.format(name).name, even.format(name).name) == ("q3_nl", "q5_0")
    rows = even.rows(name, 3, 9)
    assert rows.format == even.format(name)
    np.testing.assert_array_equal(rows.dequantize(), quantized.rows(name, 3, 9).dequantize())
    assert even.format("lm_head.weight") == quantized.format("lm_head.weight")


@pytest.mark.parametrize(
    ("device", "kept"), [("cpu", "q3_nl"), ("ort", "q5_0"), ("portable", "f32")]
)
def test_devices_keep_three_bits_or_the_same_weights(
    make_gguf: Callable[..., Any], tmp_path: Path, device: str, kept: str
) -> None:
    source = str(make_gguf("llama"))
    report = export(ExportConfig(source, tmp_path / "b", "int3", device_target=device))
    formats = report.manifest.target.tensor_formats
    assert formats["layers.0.mlp.up_proj.weight"] == kept
    assert report.manifest.verification["top1_agreement"] == 1


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_fields_have_the_formats_shapes(name: str) -> None:
    plain = quantize_rows(draw("normal")[:3], FORMATS[name])
    has_minimum = name.endswith("_1")
    assert plain.codes.shape == (3, 512)
    assert plain.codes.dtype == np.uint8
    assert plain.scale.shape == (3, 16)
    assert plain.scale.dtype == np.float16
    assert plain.minimum.shape == ((3, 16) if has_minimum else (0, 0))
    assert plain.codes.max() < 2 ** FORMATS[name].bits


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("k", [1, 31, 33, 80])
def test_partial_groups(name: str, k: int) -> None:
    values = draw("normal")[:5, :k]
    plain = quantize_rows(values, FORMATS[name])
    assert plain.shape == (5, k)
    assert plain.scale.shape == (5, -(-k // 32))
    assert np.abs(plain.dequantize() - values).max() < 0.5


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-8, 1e-30, 60000.0, -1e9])
def test_constant_groups(name: str, value: float) -> None:
    got = quantize_rows(np.full((2, 64), value, np.float32), FORMATS[name]).dequantize()
    assert np.isfinite(got).all()
    if 1e-3 < abs(value) < 60001 or value == 0:
        np.testing.assert_allclose(got, value, rtol=5e-3)


@pytest.mark.parametrize("name", ["q8_0", "q8_1"])
@settings(max_examples=100)
@given(
    values=hnp.arrays(
        np.float32, (2, 32), elements=st.floats(-1000, 1000, width=32, allow_subnormal=False)
    )
)
def test_eight_bits_are_right_to_half_a_step(name: str, values: Floats) -> None:
    plain = quantize_rows(values, FORMATS[name])
    low, high = values.min(axis=1), values.max(axis=1)
    if name == "q8_0":
        step = np.maximum(-low, high) / 127
    else:
        step = (high - low) / 255 + np.abs(low) * 2**-10
    # float16 scales add their own rounding over 127 or 255 steps, and underflow near 1e-7.
    limit = step * (0.5 + 0.13) + 1e-5
    assert (np.abs(plain.dequantize() - values) <= limit[:, None]).all()


def test_rows_quantise_alike_in_any_split() -> None:
    values = draw("laplace")
    for name in FORMAT_NAMES:
        whole = quantize_rows(values, FORMATS[name]).dequantize()
        parts = [quantize_rows(values[i : i + 7], FORMATS[name]).dequantize() for i in (0, 7, 14)]
        np.testing.assert_array_equal(np.concatenate(parts), whole[:21])


def test_schemes_choose_formats(make_gguf: Callable[..., Any]) -> None:
    checkpoint = open_checkpoint(str(make_gguf("llama", "F16")))
    for scheme, name in SCHEMES.items():
        quantized = Quantized(checkpoint, scheme)
        assert quantized.format("layers.0.mlp.up_proj.weight").name == (name or "f16")
        head = quantized.format("lm_head.weight")
        assert head == quantized.format("embed_tokens.weight")
        assert head.bits == (8 if name else 16)
        assert quantized.rows("embed_tokens.weight", 2, 5).format == head
        assert (quantized.name, quantized.licence) == (checkpoint.name, checkpoint.licence)
        assert quantized.special == checkpoint.special
        assert quantized.chat_template() == checkpoint.chat_template()
        np.testing.assert_array_equal(
            quantized.vector("norm.weight"), checkpoint.vector("norm.weight")
        )


def test_quantised_matrices_stay_as_they_are(make_gguf: Callable[..., Any], tiny: Any) -> None:
    with pytest.raises(ConfigError, match="quantised already and int4 would only lose more"):
        Quantized(open_checkpoint(str(make_gguf("llama", "Q8_0"))), "int4")
    with pytest.raises(ConfigError, match="unknown quantization 'int2'; known: keep, int8"):
        Quantized(open_checkpoint(str(make_gguf("llama"))), "int2")
    half = tiny.tiny_weights()["blk.0.ffn_up.weight"].astype(np.float16)
    path = make_gguf("llama", "Q8_0", weights={"blk.0.ffn_up.weight": half})
    quantized = Quantized(open_checkpoint(str(path)), "int4")
    assert quantized.format("layers.0.mlp.up_proj.weight").name == "q4_0"
    assert quantized.format("layers.1.mlp.up_proj.weight").name == "q8_0"


def test_report_names_the_worst_first(make_gguf: Callable[..., Any], tiny: Any) -> None:
    weights = tiny.tiny_weights()
    outliers = weights["blk.1.ffn_gate.weight"].copy()
    outliers[:, ::32] *= 50
    path = make_gguf("llama", weights={"blk.1.ffn_gate.weight": outliers})
    checkpoint = open_checkpoint(str(path))
    quantized, seen = Quantized(checkpoint, "int4"), []
    errors = measure_errors(checkpoint, quantized, lambda done, total: seen.append((done, total)))
    assert {error.name for error in errors} == set(matrices(checkpoint.config))
    assert [e.relative_rms for e in errors] == sorted(
        (e.relative_rms for e in errors), reverse=True
    )
    assert errors[-1].format == "q8_0"
    by_name = {error.name: error for error in errors}
    for name, (n, _) in matrices(checkpoint.config).items():
        values = float_rows(checkpoint, name, 0, n)
        difference = float_rows(quantized, name, 0, n) - values
        expected = np.sqrt((difference**2).mean() / (values**2).mean())
        assert by_name[name].relative_rms == pytest.approx(expected, rel=1e-4)
        assert by_name[name].max_abs == pytest.approx(np.abs(difference).max())
    assert seen[-1][0] == seen[-1][1] == sum(n * k for n, k in matrices(checkpoint.config).values())
    assert measure_errors(checkpoint, Quantized(checkpoint, "keep")) == ()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_undefined_values_are_refused(
    make_gguf: Callable[..., Any], tiny: Any, value: float
) -> None:
    weights = tiny.tiny_weights()["blk.0.ffn_up.weight"]
    weights[3, 5] = value
    checkpoint = open_checkpoint(str(make_gguf("llama", weights={"blk.0.ffn_up.weight": weights})))
    quantized = Quantized(checkpoint, "int8")
    for _ in range(2):  # the matrix as a whole, each time
        with pytest.raises(CheckpointError, match=r"up_proj\.weight holds infinite or undefined"):
            quantized.rows("layers.0.mlp.up_proj.weight", 0, 2)


@pytest.mark.parametrize("scheme", ["int4", "int8-min"])
def test_every_matrix_is_quantised_once(
    make_gguf: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """For the error report, the packed file and the reference of the verification together."""
    n_weights = 0

    def counted(values: Floats, fmt: QuantFormat) -> PlainTensor:
        nonlocal n_weights
        n_weights += values.size
        return quantize_rows(values, fmt)

    monkeypatch.setattr(quantize, "quantize_rows", counted)
    report = export(ExportConfig(str(make_gguf("llama")), tmp_path / "b", scheme))
    shapes = matrices(report.manifest.target.config).values()
    assert n_weights == sum(n * k for n, k in shapes)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted(
        [*(Path(name).name for name in report.manifest.files), "manifest.json"]
    )


def test_what_is_kept_on_disk_is_what_was_quantised(
    make_gguf: Callable[..., Any], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(str(make_gguf("llama")))
    name = "layers.1.mlp.down_proj.weight"
    values = float_rows(checkpoint, name, 0, 256)
    for scheme, fmt in (("int4", "q4_0"), ("int8-min", "q8_1")):
        quantized, whole = Quantized(checkpoint, scheme), quantize_rows(values, FORMATS[fmt])
        for start, stop in ((0, 256), (3, 4), (250, 256), (7, 7)):
            rows = quantized.rows(name, start, stop)
            assert rows.format == whole.format
            for got, expected in ((rows.codes, whole.codes), (rows.scale, whole.scale)):
                np.testing.assert_array_equal(got, expected[start:stop])
            if len(whole.minimum):
                np.testing.assert_array_equal(rows.minimum, whole.minimum[start:stop])
            np.testing.assert_array_equal(rows.dequantize(), whole.dequantize()[start:stop])
