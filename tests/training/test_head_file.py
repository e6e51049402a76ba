"""Draft heads in files by themselves: written, attached to the model again, refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExitConfig, ExportConfig
from edgedec.export.heads import shipped_heads
from edgedec.export.heads.head_file import HeadFacts, read_head_file, write_head_file
from edgedec.export.pipeline import export
from edgedec.models.draft_heads import EXIT, HYDRA, OF_MODEL
from edgedec.models.errors import CheckpointError, ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions

torch = pytest.importorskip("torch", reason="needs the extra train")
safetensors = pytest.importorskip("safetensors.numpy", reason="needs safetensors")
safe_open = pytest.importorskip("safetensors").safe_open

from edgedec.training.features.feature_file import TextFeatures  # noqa: E402
from edgedec.training.heads import train_head as heads  # noqa: E402

from ..export.checkpoints.test_lora import write_adapter  # noqa: E402
from .head_parts import CONTEXT, check_text, plan_of, put, trained  # noqa: E402

pytestmark = pytest.mark.slow


def share(bundle: Path, head: heads.TrainedHead, folder: Path, scheme: str) -> tuple[Path, Path]:
    """Returns a bundle with ``head``, and the head's file."""
    path, file = folder / f"{scheme}.edgedec", folder / f"{scheme}.safetensors"
    manifest = put(bundle, head, path, scheme)
    assert manifest.head is not None
    heads.share_head(file, bundle, read_manifest(bundle), head, manifest.head, scheme)
    return path, file


@pytest.fixture(scope="module")
def file(bundle: Path, head: heads.TrainedHead, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return share(bundle, head, tmp_path_factory.mktemp("file"), "int4")[1]


@pytest.mark.parametrize("scheme", ["int4", "int8"])
def test_an_attached_head_is_the_trained_one(
    source: Path, bundle: Path, head: heads.TrainedHead, tmp_path: Path, scheme: str
) -> None:
    path, file = share(bundle, head, tmp_path, scheme)
    attached = tmp_path / "attached.edgedec"
    export(ExportConfig(str(source), attached, context=CONTEXT, head=file))
    expected, found = read_manifest(path).head, read_manifest(attached).head
    assert expected is not None
    assert found == expected
    ours, theirs = (heads.BundleWeights.of_head(place, expected) for place in (attached, path))
    for name, shape in ours.shapes.items():
        read = "matrix" if len(shape) == 2 else "vector"
        np.testing.assert_array_equal(getattr(ours, read)(name), getattr(theirs, read)(name))


@pytest.mark.parametrize("method", ["eagle", "auto"])
def test_the_text_is_that_of_plain_decoding(
    source: Path, file: Path, tmp_path: Path, method: str
) -> None:
    export(ExportConfig(str(source), tmp_path / "b.edgedec", context=CONTEXT, head=file))
    check_text(tmp_path / "b.edgedec", method, 0.0)


def test_light_heads_have_files_too(
    source: Path, bundle: Path, texts: list[TextFeatures], tmp_path: Path
) -> None:
    light = trained(bundle, tmp_path / "work", texts, plan_of(HYDRA, n_epochs=1))
    path, file = share(bundle, light, tmp_path, "int8")
    export(ExportConfig(str(source), tmp_path / "b.edgedec", context=CONTEXT, head=file))
    expected, found = read_manifest(path).head, read_manifest(tmp_path / "b.edgedec").head
    assert expected is not None
    assert found is not None
    # Fewer states are returned, but all heads are in the model's graph.
    assert found.joined is not None
    assert found.joined.contract.can.mtp == found.head.config.n_layers
    assert dataclasses.replace(found, model=expected.model, joined=expected.joined) == expected


Ship = Callable[..., Path]


@pytest.fixture
def ship(
    monkeypatch: pytest.MonkeyPatch, source: Path, file: Path, tmp_path: Path
) -> Callable[..., Path]:
    """Returns a function that makes the distribution of heads from ``file``; its index may differ.

    It returns the distribution's folder.
    """

    def make(**entry: Any) -> Path:
        folder = tmp_path / "edgedec_heads"
        folder.mkdir()
        path = folder / "tiny.safetensors"
        path.write_bytes(file.read_bytes())
        fields = {
            "file": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "config": shipped_heads.config_digest(open_checkpoint(str(source)).config),
        } | entry
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
        (folder / "heads.toml").write_text(f"[tiny]\n{lines}")
        monkeypatch.setattr(shipped_heads, "heads_folder", lambda: folder)
        return folder

    return make


def test_a_model_gets_the_shipped_head_that_was_trained_for_it(
    source: Path, file: Path, tmp_path: Path, ship: Ship
) -> None:
    ship()
    config = ExportConfig(str(source), tmp_path / "b.edgedec", context=CONTEXT)
    done = export(config)
    assert [line[:40] for line in done.notes] == ["with the draft head tiny of edgedec-head"]
    found = read_manifest(tmp_path / "b.edgedec").head
    assert found is not None
    assert found.kind == read_head_file(file).facts.kind
    check_text(tmp_path / "b.edgedec", "auto", 0.0)
    with load(config.destination, EngineOptions(head=False)) as engine:
        request = GenerationConfig(max_new_tokens=4, method="eagle")
        with pytest.raises(ConfigError, match="needs a draft head"):
            engine.generate([5, 6, 7], request)
    for i, fields in enumerate(
        (
            {"has_brought_head": False},
            {"exit": ExitConfig((1,), 100)},
            {"device_target": "portable"},
            {"quantization": "int4"},
        )
    ):
        path = tmp_path / f"{i}.edgedec"
        done = export(dataclasses.replace(config, destination=path, **fields))
        assert done.notes == ()
        other = read_manifest(path).head
        assert other is None or other.kind == EXIT, fields


def test_a_shipped_head_of_other_weights_is_left_out_with_a_line(
    make_checkpoint: Callable[[int], Path], tmp_path: Path, ship: Ship
) -> None:
    ship()
    done = export(ExportConfig(str(make_checkpoint(7)), tmp_path / "b.edgedec", context=CONTEXT))
    assert read_manifest(tmp_path / "b.edgedec").head is None
    (line,) = done.notes
    assert re.match(
        r"without a draft head: that of edgedec-heads \(tiny\) is of another release or "
        r"quantisation of the model, its hash is not \w{12}$",
        line,
    )


def test_a_model_that_an_adapter_changes_gets_no_shipped_head_and_says_so(
    source: Path, tmp_path: Path, ship: Ship
) -> None:
    ship()
    write_adapter(tmp_path / "adapter")
    config = ExportConfig(
        str(source), tmp_path / "b.edgedec", context=CONTEXT, lora=((tmp_path / "adapter", 1.0),)
    )
    done = export(config)
    assert read_manifest(tmp_path / "b.edgedec").head is None
    assert done.notes == (
        "without a draft head: that of edgedec-heads (tiny) was trained for the model without the "
        "adapter; `edgedec train head` trains one for this bundle",
    )


@pytest.mark.parametrize(
    ("change", "entry", "expected"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), {}, "tiny.safetensors has the SHA"),
        (lambda path: path.write_bytes(path.read_bytes() + b" "), {}, "expected"),
        (lambda path: path.unlink(), {}, "cannot read .*tiny.safetensors"),
        (lambda path: path.with_name("heads.toml").unlink(), {}, "cannot read .*heads.toml"),
        (lambda path: path.with_name("heads.toml").write_bytes(b"\xff"), {}, "is no list of heads"),
        (lambda path: path.with_name("heads.toml").write_text("tiny = 3"), {}, "is 3, expected"),
        (None, {"file": "../tiny.safetensors"}, "expected the name of a file beside the list"),
        (None, {"sha256": 5}, "sha256 is 5, expected text"),
        (None, {"licence": "none"}, "has the key 'licence'"),
    ],
)
def test_a_damaged_distribution_is_left_out_with_a_line(
    source: Path,
    tmp_path: Path,
    ship: Ship,
    change: Callable[[Path], object] | None,
    entry: dict[str, Any],
    expected: str,
) -> None:
    folder = ship(**entry)
    if change is not None:
        change(folder / "tiny.safetensors")
    config = ExportConfig(str(source), tmp_path / "b.edgedec", context=CONTEXT)
    done = export(config)
    assert read_manifest(config.destination).head is None
    (line,) = done.warnings
    assert re.match(f"a shipped draft head is left out: .*{expected}", line)
    assert line.endswith("install edgedec-heads again")


def test_without_the_distribution_nothing_is_said(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped_heads, "heads_folder", lambda: None)
    done = export(ExportConfig(str(source), tmp_path / "b.edgedec", context=CONTEXT))
    assert (done.notes, done.warnings) == ((), ())
    assert read_manifest(tmp_path / "b.edgedec").head is None


def test_what_the_model_has_is_not_in_it(file: Path, head: heads.TrainedHead) -> None:
    held = read_head_file(file)
    assert not [name for name in held.tensors if name.startswith(OF_MODEL)]
    n_weights = sum(w.size for name, w in head.weights.items() if name not in OF_MODEL)
    assert file.stat().st_size < 0.75 * n_weights + 4 * len(held.head_ids) + 8192


@pytest.mark.parametrize("fields", [{"quantization": "int4"}, {"seed": 1}])
def test_the_head_of_another_model_or_quantisation_is_refused(
    source: Path,
    make_checkpoint: Callable[[int], Path],
    file: Path,
    tmp_path: Path,
    fields: dict[str, Any],
) -> None:
    path = tmp_path / "b.edgedec"
    if "seed" in fields:
        source, fields = make_checkpoint(7), {}
    with pytest.raises(CheckpointError, match=r"of the model \w{12}, this one is \w{12}"):
        export(ExportConfig(str(source), path, context=CONTEXT, head=file, **fields))
    assert not path.exists()


def test_exits_and_a_head_do_not_go_together(source: Path, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.edgedec"
    with pytest.raises(ConfigError, match="early exits or a draft head"):
        ExportConfig(str(source), path, exit=ExitConfig((1,)), head=file)
    with pytest.raises(ConfigError, match="a draft head needs a fused graph"):
        ExportConfig(str(source), path, device_target="ort", head=file)


def changed(file: Path, path: Path, facts: dict[str, Any], **tensors: Any) -> Path:
    """Writes ``file`` to ``path`` with other facts and tensors; None leaves one out."""
    held = read_head_file(file)
    with safe_open(file, "np") as opened:
        reported = json.loads(opened.metadata()["edgedec-head"]) | facts
    kept = {name: value for name, value in (held.tensors | tensors).items() if value is not None}
    safetensors.save_file(kept, path, {"edgedec-head": json.dumps(reported)})
    return path


CODES = "layers.0.mlp.up_proj.weight.codes"
SCALES = "layers.0.mlp.up_proj.weight.scales"


@pytest.mark.parametrize(
    ("facts", "tensors", "message"),
    [
        ({"kind": "exit"}, {}, "kind is 'exit'"),
        ({"scheme": "int2"}, {}, "scheme is 'int2'"),
        ({"hidden_layers": [2, 1]}, {}, "rising numbers"),
        ({"kind": "hydra"}, {}, "expected one layer, which hydra reads"),
        ({"hidden_layers": [1, 2, 3]}, {}, "hidden layer 3 does not exist|expected"),
        ({"n_heads": 10**6}, {}, "n_heads is 1000000"),
        ({"more": 1}, {}, "more"),
        ({"held_out": [7.5]}, {}, "held_out is a list of 1, expected shares"),
        ({}, {CODES: None}, f"{CODES} is nothing"),
        ({}, {CODES: np.zeros((3, 3), np.uint8)}, f"{CODES} is uint8"),
        ({}, {CODES: np.zeros((48, 16), np.int32)}, f"{CODES} is int32"),
        ({}, {SCALES: np.full((48, 1), np.nan, np.float16)}, "no numbers|expected"),
        ({}, {"head_ids": None}, "which tokens"),
        ({}, {"head_ids": np.array([5, 4], np.int32)}, "rising ids"),
        ({}, {"head_ids": np.array([5, 10**6], np.int32)}, "is no token"),
    ],
)
def test_files_that_contradict_themselves(
    source: Path,
    file: Path,
    tmp_path: Path,
    facts: dict[str, Any],
    tensors: dict[str, Any],
    message: str,
) -> None:
    broken = changed(file, tmp_path / "broken.safetensors", facts, **tensors)
    path = tmp_path / "b.edgedec"
    with pytest.raises((CheckpointError, ConfigError), match=message):
        export(ExportConfig(str(source), path, context=CONTEXT, head=broken))
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"{}", None])
def test_what_is_no_head_is_refused(file: Path, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file.read_bytes()[:-100] if content is None else content)
    with pytest.raises(CheckpointError, match="is not a draft head"):
        read_head_file(path)
    with pytest.raises(CheckpointError, match="cannot read"):
        read_head_file(tmp_path / "missing")


def test_other_safetensors_are_refused(tmp_path: Path) -> None:
    safetensors.save_file({"x": np.zeros(3, np.float32)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="--head-file"):
        read_head_file(tmp_path / "x.safetensors")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    facts = HeadFacts("eagle", "0" * 32, (1, 2), 1, "int4", "texts", 9, (0.5,))
    with pytest.raises(ConfigError, match="cannot write"):
        write_head_file(tmp_path / "none" / "h.safetensors", facts, {}, np.array([1]))
