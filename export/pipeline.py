"""From a checkpoint to a bundle: the ordered phases."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx

from edgedec.export.bundle import bundle_folder, check_destination, hash_files, write_manifest
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.quantize import Quantized, TensorError, measure_errors
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.graph import WEIGHTS_FILE
from edgedec.export.to_onnx.weights_file import write_weights
from edgedec.export.verify import verify_graph
from edgedec.models.blocks import weight_shapes
from edgedec.models.errors import ConfigError, UnsupportedModelError
from edgedec.models.manifest import SCHEMA_VERSION, BundleManifest, FileEntry, ModelEntry
from edgedec.models.quant import FORMATS, QuantFormat
from edgedec.targets import DeviceTarget, device_target

OnProgress = Callable[[str, int, int], None]
"""Phase, bytes done in it, bytes in all (0: unknown)."""

MAX_KL_NATS = 0.5
"""Mean divergence from the reference that 8-bit activations never come near."""

MODEL_FOLDER = "target"
GRAPH_NAME = "model.onnx"


@dataclass
class Draft:
    """A bundle in the making. Each phase fills in what later ones need.

    report: called with bytes done and bytes in all of the current phase.
    formats: storage format of every matrix.
    """

    config: ExportConfig
    device: DeviceTarget
    source: Checkpoint
    folder: Path
    report: Callable[[int, int], None]
    context: int = 0
    formats: dict[str, QuantFormat] = field(default_factory=dict)
    graph: onnx.ModelProto = field(default_factory=onnx.ModelProto)
    tensors: tuple[TensorError, ...] = ()
    verification: dict[str, Any] = field(default_factory=dict)
    manifest: BundleManifest | None = None


def read(draft: Draft) -> None:
    """The tokenizer and the chat template, as they are."""
    _write(draft.folder / "tokenizer.json", draft.source.tokenizer_json())
    if (template := draft.source.chat_template()) is not None:
        _write(draft.folder / "chat_template.jinja", template)
    special = draft.source.special
    settings = {"bos_token_id": special.bos_id, "eos_token_id": list(special.eos_ids)}
    _write(draft.folder / "generation_config.json", json.dumps(settings, indent=2))


def configure(draft: Draft) -> None:
    """How long and how deep the graph is."""
    model, wanted = draft.source.config, draft.config
    draft.context = wanted.context or model.max_positions
    if draft.context > model.max_positions:
        raise ConfigError(
            f"context {draft.context} is more than the {model.max_positions} positions "
            f"{draft.source.name} was trained for; ask for fewer"
        )
    if wanted.hidden_layers and wanted.hidden_layers[-1] > model.n_layers:
        raise ConfigError(
            f"hidden layer {wanted.hidden_layers[-1]} does not exist, {draft.source.name} has "
            f"layers 0 (embeddings) to {model.n_layers}"
        )


def quantise(draft: Draft) -> None:
    """The format of every matrix, and what quantising costs each."""
    if draft.config.quantization != "keep":
        original, draft.source = draft.source, Quantized(draft.source, draft.config.quantization)
        draft.tensors = measure_errors(original, draft.source, draft.report)
    stored = FORMATS["f32"]
    for name, shape in weight_shapes(draft.source.config).items():
        if len(shape) == 2:
            own = draft.source.format(name)
            draft.formats[name] = own if draft.device.keeps(own.name) else stored


def emit(draft: Draft) -> None:
    """The portable graph of the family's recipe."""
    wanted = draft.config
    draft.graph = emit_portable(draft.source.config, draft.context, wanted.hidden_layers)


def fuse_graph(draft: Draft) -> None:
    """The fused graph, where the device runs one."""
    if draft.device.graph_kind == "fused":
        dump = None if draft.config.dump_passes is None else _dump_into(draft.config.dump_passes)
        draft.graph = fuse(draft.graph, draft.source.config, draft.formats, dump)


def pack(draft: Draft) -> None:
    """Weights in the device's layout, then the graph that refers to them."""
    folder = draft.folder / MODEL_FOLDER
    folder.mkdir()
    write_weights(
        draft.graph, draft.source, folder, lambda done, total, _: draft.report(done, total)
    )
    onnx.save(draft.graph, folder / GRAPH_NAME)


def verify(draft: Draft) -> None:
    """Logits of the written graph against the reference."""
    graph = draft.folder / MODEL_FOLDER / GRAPH_NAME
    found = verify_graph(graph, draft.device.graph_kind, draft.source)
    if not found["kl_nats"] <= MAX_KL_NATS:  # also true of NaN
        raise UnsupportedModelError(
            f"the graph of {draft.source.name} is {found['kl_nats']:.3g} nats from the reference, "
            f"expected at most {MAX_KL_NATS}: its weights are broken, or it is no plain "
            f"{draft.source.config.family}; nothing was written"
        )
    draft.verification = found


def seal(draft: Draft) -> None:
    """Hashes and the manifest. Renaming the folder is the last act of the export."""
    sizes = sum(path.stat().st_size for path in draft.folder.rglob("*") if path.is_file())
    done = 0

    def on_bytes(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        draft.report(done, sizes)

    draft.manifest = _manifest(draft, hash_files(draft.folder, on_bytes))
    write_manifest(draft.folder, draft.manifest)


PHASES: tuple[tuple[str, Callable[[Draft], None]], ...] = (
    ("read", read),
    ("configure", configure),
    ("quantise", quantise),
    ("emit", emit),
    ("fuse", fuse_graph),
    ("pack", pack),
    ("verify", verify),
    ("seal", seal),
)


@dataclass(frozen=True)
class ExportReport:
    """What an export did. tensors: errors of quantisation, the worst first."""

    bundle: Path
    manifest: BundleManifest
    tensors: tuple[TensorError, ...]
    phase_ms: dict[str, float]

    @property
    def n_bytes(self) -> int:
        return sum(entry.n_bytes for entry in self.manifest.files.values())

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {
            "bundle": str(self.bundle),
            "name": self.manifest.name,
            "device_target": self.manifest.device_target,
            "quantization": self.manifest.quantization,
            "n_bytes": self.n_bytes,
            "phase_ms": self.phase_ms,
            "verification": self.manifest.verification,
            "tensors": [dataclasses.asdict(tensor) for tensor in self.tensors],
        }


def export(config: ExportConfig, on_progress: OnProgress | None = None) -> ExportReport:
    """Writes the bundle that ``config`` asks for and returns what was done.

    Raises:
        ConfigError: The options do not fit the model.
        CheckpointError: The source is missing or broken.
        UnsupportedModelError: There is no recipe for the source.
        BundleError: The destination cannot be written; whatever was there is untouched.
    """
    check_destination(config.destination, config.is_overwrite_allowed)
    source = open_checkpoint(config.source)
    with bundle_folder(config.destination, config.is_overwrite_allowed) as folder:
        draft = Draft(config, device_target(config.device_target), source, folder, _no_report)
        phase_ms = _run_phases(draft, on_progress or _no_progress)
    assert draft.manifest is not None
    return ExportReport(config.destination, draft.manifest, draft.tensors, phase_ms)


def _run_phases(draft: Draft, on_progress: OnProgress) -> dict[str, float]:
    """Runs `PHASES` in order and returns how long each took. Units: milliseconds."""
    phase_ms = {}
    for name, run in PHASES:
        draft.report = partial(on_progress, name)
        draft.report(0, 0)
        start = time.perf_counter()
        run(draft)
        phase_ms[name] = round((time.perf_counter() - start) * 1e3, 1)
    return phase_ms


def _manifest(draft: Draft, files: dict[str, FileEntry]) -> BundleManifest:
    model = ModelEntry(
        graph=f"{MODEL_FOLDER}/{GRAPH_NAME}",
        graph_kind=draft.device.graph_kind,
        weights=(f"{MODEL_FOLDER}/{WEIGHTS_FILE}",),
        config=draft.source.config,
        context=draft.context,
        hidden_layers=draft.config.hidden_layers,
        tensor_formats={name: fmt.name for name, fmt in draft.formats.items()},
    )
    special = draft.source.special
    return BundleManifest(
        schema_version=SCHEMA_VERSION,
        name=draft.source.name,
        licence=draft.source.licence,
        edgedec_version=metadata.version("edgedec"),
        device_target=draft.device.name,
        quantization=draft.config.quantization,
        models={"target": model},
        files=files,
        stop_token_ids=special.eos_ids,
        bos_token_id=special.bos_id,
        add_bos=special.add_bos,
        defaults={"method": "plain"},
        verification=draft.verification,
    )


def _dump_into(folder: Path) -> Callable[[str, onnx.ModelProto], None]:
    folder.mkdir(parents=True, exist_ok=True)
    return lambda stem, graph: onnx.save(graph, folder / f"{stem}.onnx")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _no_report(done: int, total: int) -> None:
    pass


def _no_progress(phase: str, done: int, total: int) -> None:
    pass
