"""Quantising on a text: the algorithm against its textbook form, and exports of tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.export.checkpoints.checkpoint import EditedCheckpoint, open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.quantising.calibration import compensate
from edgedec.export.quantising.calibration.calibrate import Calibration, Finished
from edgedec.export.quantising.calibration.compensate import Moments, round_compensated
from edgedec.export.quantising.calibration.mixed import choose_formats, stored_bits
from edgedec.export.quantising.calibration.norm_readers import norm_readers
from edgedec.export.quantising.calibration.scaling import Scaled, scale_for
from edgedec.export.quantising.calibration.scores import Scores, score
from edgedec.export.quantising.calibration.texts import CalibrationTexts, read_texts
from edgedec.export.quantising.quantise import Quantized, quantize_rows
from edgedec.models.errors import ConfigError
from edgedec.models.families import matrices
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat
from edgedec.models.reference import ReferenceModel
from edgedec.models.weights import float_rows

N_MATRICES = 2 * 7 + 1
"""Of the tiny model, with its head."""
Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a text of some thousand tokens of the tiny vocabulary."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    words = ["hello", " w", "12", "  ", "hell", "o, ", "ll", ". Then", " he", "x=1;\n"]
    rng = np.random.default_rng(0)
    path.write_text("".join(words[i] for i in rng.integers(0, len(words), 2500)))
    return path


def correlated(n: int, k: int) -> Floats:
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((k, k)) / k**0.5
    size = np.exp(rng.standard_normal(k))
    return (rng.standard_normal((n, k)) @ mixing * size).astype(np.float32)


@pytest.mark.parametrize("name", ["q3_nl", "q4_0", "q4_1", "q5_0", "q8_0", "q8_1"])
def test_outputs_lose_less_than_by_rounding(name: str) -> None:
    inputs = correlated(1024, 96)
    weights = np.random.default_rng(1).standard_normal((50, 96)).astype(np.float32)
    made = round_compensated(weights, Moments.of(inputs.T @ inputs), FORMATS[name])
    assert (made.format, made.shape) == (FORMATS[name], weights.shape)

    def loss(values: Floats) -> float:
        return float(np.square(inputs @ (values - weights).T).sum())

    rounded = "q8_0" if "8" in name else "q4_1" if name.endswith("1") else "q4_0"
    plain = FORMATS["q3_nl" if "3" in name else rounded]
    assert loss(made.dequantize()) < 0.6 * loss(quantize_rows(weights, plain).dequantize())


def test_codes_are_those_of_the_textbook() -> None:
    """Algorithm 1 of the paper, with the inverse of the moments, in float64."""
    inputs = correlated(512, 32).astype(np.float64)
    weights = np.random.default_rng(2).standard_normal((20, 32))
    moments = inputs.T @ inputs / 512 + 0.01 * np.eye(32)
    scale = np.float16(0.3)
    inverse = np.linalg.cholesky(np.linalg.inv(moments)).T  # upper: inverse = U^T U
    rest, codes = weights.copy(), np.empty((20, 32))
    for j in range(32):
        codes[:, j] = np.clip(np.rint(rest[:, j] / float(scale)), -8, 7)
        error = (rest[:, j] - codes[:, j] * float(scale)) / inverse[j, j]
        rest[:, j:] -= error[:, None] * inverse[j, j:]
    factor = np.linalg.cholesky(moments[::-1, ::-1])[::-1, ::-1].astype(np.float32)
    scales = np.full((1, 20), scale, np.float32)
    columns = np.ascontiguousarray(weights.T, np.float32)
    found = compensate._round_columns(
        columns, np.zeros_like(columns), factor, FORMATS["q4_0"], scales, np.zeros_like(scales)
    )
    np.testing.assert_array_equal(found.codes[:, 0].T.astype(int) - 8, codes)


def test_inputs_that_are_never_used_do_not_matter() -> None:
    inputs = correlated(256, 64)
    inputs[:, :33] = 0
    weights = np.random.default_rng(3).standard_normal((8, 64)).astype(np.float32)
    made = round_compensated(weights, Moments.of(inputs.T @ inputs), FORMATS["q4_0"]).dequantize()
    assert np.isfinite(made).all()
    nothing = round_compensated(weights, Moments.of(np.zeros((64, 64))), FORMATS["q4_0"])
    assert np.abs(nothing.dequantize() - weights).max() < 0.5


class Rounding(Calibration):
    """The same pass with matrices rounded by themselves."""

    def _is_compensated(self, *_: Any) -> bool:
        return False


def test_the_pass_measures_what_the_reference_computes(make_gguf: Any, text: Path) -> None:
    checkpoint = open_checkpoint(str(make_gguf("qwen2")))
    texts = read_texts(text, checkpoint, length=64)
    short = CalibrationTexts(texts.texts[:4], texts.held_out)
    scaled = Scaled(checkpoint)
    quantised = Quantized(scaled, "int4")
    calibrated = Calibration(scaled, quantised).compute_scores(short)
    ids = short.held_out.tolist()
    expected, logits = (ReferenceModel(s).forward(ids).logits for s in (checkpoint, quantised))
    log_p, log_q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (expected, logits))
    kl = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)[:-1].mean()
    assert calibrated.kl_nats == pytest.approx(float(kl), rel=1e-3)
    assert calibrated.n_tokens == len(ids) - 1
    rounded = Rounding(Scaled(checkpoint), Quantized(checkpoint, "int4")).compute_scores(short)
    assert rounded.float_perplexity == pytest.approx(calibrated.float_perplexity, rel=1e-4)
    assert calibrated.kl_nats < 0.8 * rounded.kl_nats


def test_what_is_held_out_changes_no_weight(make_gguf: Any, text: Path) -> None:
    checkpoint = open_checkpoint(str(make_gguf("qwen2")))
    texts = read_texts(text, checkpoint, length=64)

    def made(held_out: npt.NDArray[np.int64]) -> dict[str, Floats]:
        scaled = Scaled(checkpoint)
        quantised = Quantized(scaled, "int4")
        Calibration(scaled, quantised).compute_scores(CalibrationTexts(texts.texts[:2], held_out))
        shapes = matrices(checkpoint.config)
        return {name: float_rows(quantised, name, 0, n) for name, (n, _) in shapes.items()}

    first, second = made(texts.held_out), made(texts.texts[5])
    for name, weights in first.items():
        np.testing.assert_array_equal(weights, second[name], err_msg=name)


def test_a_scaled_model_is_what_it_was(make_gguf: Any) -> None:
    checkpoint = open_checkpoint(str(make_gguf("qwen2")))
    scaled = Scaled(checkpoint)
    rng = np.random.default_rng(4)
    readers = norm_readers(checkpoint.config)
    assert len(readers) == 2 * checkpoint.config.n_layers + 1
    for norm, names in readers.items():
        scale = np.exp(rng.standard_normal(checkpoint.config.hidden_size)).astype(np.float32)
        scaled.scale(norm, [n for n in names if n != "embed_tokens.weight"], scale)
    layers = [norm for norm in readers if norm.startswith("layers.")]
    assert sorted(readers[layers[1]]) == [f"layers.0.mlp.{n}_proj.weight" for n in ("gate", "up")]
    ids = [3, 1, 4, 1, 5]
    expected, found = (ReferenceModel(s).forward(ids).logits for s in (checkpoint, scaled))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_large_inputs_have_their_weights_rounded_finer() -> None:
    rng = np.random.default_rng(5)
    inputs = rng.standard_normal((512, 64)).astype(np.float32)
    inputs[:, ::16] *= 30
    weights = rng.standard_normal((128, 64)).astype(np.float32)
    fmt = FORMATS["q4_0"]
    scale = scale_for(inputs)
    assert scale[::16].min() > 1.5 * np.delete(scale, slice(None, None, 16)).max()
    assert np.log(scale).mean() == pytest.approx(0, abs=1e-5)

    def loss(s: Floats) -> float:
        xs = inputs / s
        made = round_compensated(weights * s, Moments.of(xs.T @ xs / 512), fmt).dequantize() / s
        return float(np.square(inputs @ (made - weights).T).sum())

    assert loss(scale) < 0.7 * loss(np.ones_like(scale))


@pytest.mark.slow
def test_mixed_spends_its_bits_where_they_help(make_gguf: Any, text: Path) -> None:
    checkpoint = open_checkpoint(str(make_gguf("llama")))
    texts = read_texts(text, checkpoint, length=64)
    sizes = {name: n * k for name, (n, k) in matrices(checkpoint.config).items()}
    for target in (3.5, 4.5, 5.0, 6.5, 8.5):
        formats = choose_formats(checkpoint, texts, target)
        assert formats.keys() == sizes.keys()
        bits = sum(stored_bits(fmt) * sizes[name] for name, fmt in formats.items())
        assert target - 0.4 < bits / sum(sizes.values()) <= target
    with pytest.raises(ConfigError, match=r"target bits are 3\.2, expected at least 3\.5"):
        choose_formats(checkpoint, texts, 3.2)


class WithoutAttention(EditedCheckpoint):
    """A checkpoint whose first layer adds nothing of what it attends to."""

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        rows = super().rows(name, start, stop)
        values = rows.dequantize()
        if name == "layers.0.self_attn.o_proj.weight":
            values[:] = 0
        return PlainTensor(FORMATS["f32"], values)

    def format(self, name: str) -> QuantFormat:
        return FORMATS["f32"]


def test_mixed_spends_nothing_where_predictions_do_not_change(
    make_gguf: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = WithoutAttention(open_checkpoint(str(make_gguf("llama"))))
    texts = read_texts(text, checkpoint, length=64)
    measured: list[float] = []

    def counted(*logits: Any) -> Scores:
        scores = score(*logits)
        measured.append(scores.kl_nats)
        return scores

    monkeypatch.setattr("edgedec.export.quantising.calibration.mixed.score", counted)
    finished = Finished(tmp_path, "a key")
    formats = choose_formats(checkpoint, texts, 6.0, finished)
    n_measured = N_MATRICES + 1  # and the embedding
    unused = {f"layers.0.self_attn.{part}_proj.weight" for part in "qkvo"}
    assert {formats[name].name for name in unused} == {"q4_0"}
    assert {fmt.name for name, fmt in formats.items() if name not in unused} & {"q5_0", "q5_1"}
    assert len(measured) == len(formats) == n_measured
    damaged = next(tmp_path.glob("*.o_proj.weight.npz"))
    damaged.write_bytes(damaged.read_bytes()[:50])
    assert choose_formats(checkpoint, texts, 6.0, finished) == formats
    assert len(measured) == n_measured + 1


def options(source: Path, folder: Path, text: Path, **changed: Any) -> ExportConfig:
    fields = {"quantization": "int4", "calibrate": text, **changed}
    return ExportConfig(str(source), folder / "tiny.edgedec", **fields)


@pytest.mark.slow
def test_an_interrupted_calibration_goes_on(
    make_gguf: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_gguf("llama")
    calls: list[tuple[int, int]] = []

    def counted(weights: Floats, *rest: Any) -> Any:
        calls.append(weights.shape)
        return round_compensated(weights, *rest)

    monkeypatch.setattr(
        "edgedec.export.quantising.calibration.calibrate.round_compensated", counted
    )

    def stop(phase: str, done: int, total: int) -> None:
        if phase == "quantise" and done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(options(source, tmp_path, text), stop)
    n_before = len(calls)
    assert [path.name for path in tmp_path.iterdir()] == [".tiny.edgedec.calibration"]
    report = export(options(source, tmp_path, text))
    assert 0 < n_before < len(calls) == N_MATRICES
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.edgedec"]
    found = report.manifest.verification["calibration"]
    assert found["bits_per_weight"] < 6
    other = export(options(source, tmp_path / "other", text))
    assert len(calls) == 2 * N_MATRICES
    assert other.manifest.files["target/weights.bin"] == report.manifest.files["target/weights.bin"]


def test_what_makes_no_sense_is_refused(make_gguf: Any, text: Path, tmp_path: Path) -> None:
    source = make_gguf("llama")
    with pytest.raises(ConfigError, match="--calibrate needs --quant int3"):
        options(source, tmp_path, text, quantization="keep")
    with pytest.raises(ConfigError, match="--quant mixed needs --calibrate FILE"):
        options(source, tmp_path, text, quantization="mixed")
    with pytest.raises(ConfigError, match="--target-bits 5 needs --quant mixed"):
        options(source, tmp_path, text, target_bits=5.0)
    with pytest.raises(ConfigError, match=r"cannot calibrate on .*absent: No such file"):
        export(options(source, tmp_path, tmp_path / "absent"))
    short = tmp_path / "short.txt"
    short.write_text("hello")
    with pytest.raises(ConfigError, match=r"has \d tokens, expected at least 1024"):
        export(options(source, tmp_path, short))
    with pytest.raises(ConfigError, match="is quantised already"):
        export(options(make_gguf("llama", "Q4_0"), tmp_path, text))
    assert not (tmp_path / "tiny.edgedec").exists()
