"""What a bundle states about itself: `manifest.json`, validated completely before use."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NoReturn, cast

from edgedec.models.config import ModelConfig, RopeScaling
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.fields import Fields, shown
from edgedec.models.onnx_locations import locations
from edgedec.models.quant import FORMATS

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
ROLES = ("target", "draft", "auxiliary")
GRAPH_KINDS = ("fused", "portable", "optimum")
GraphKind = Literal["fused", "portable", "optimum"]
KV_FORMATS = ("float16", "int8")
KVFormat = Literal["float16", "int8"]

MAX_MANIFEST_BYTES = 64 << 20
SMALL_FILE_BYTES = 32 << 20
"""Files up to this size are hash-checked at every load; larger ones by `damaged_files` only."""

_MAX_FILE_BYTES = 2**62
_SCALING_KINDS = ("none", "linear", "llama3", "factors")


@dataclass(frozen=True)
class FileEntry:
    """Size and SHA-256 (lower-case hex) of one file of the bundle."""

    n_bytes: int
    sha256: str


@dataclass(frozen=True)
class ModelEntry:
    """One model of the bundle. ``graph`` and ``weights`` are keys of `BundleManifest.files`.

    context: most positions the graph serves. hidden_layers: layers whose hidden states it can
    return. tensor_formats: storage format of every matrix, by weight name. head_ids: file of the
    token ids that the rows of a trimmed head stand for. name, licence: as published, where they
    are not the bundle's own. kv_format: of the KV cache of a fused graph; None in older bundles,
    which have float16, and for other kinds of graph.
    """

    graph: str
    graph_kind: GraphKind
    weights: tuple[str, ...]
    config: ModelConfig
    context: int
    hidden_layers: tuple[int, ...]
    tensor_formats: dict[str, str]
    head_ids: str | None = None
    name: str | None = None
    licence: str | None = None
    kv_format: KVFormat | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The model's files, as keys of `BundleManifest.files`."""
        head_ids = () if self.head_ids is None else (self.head_ids,)
        return (self.graph, *self.weights, *head_ids)


@dataclass(frozen=True)
class BundleManifest:
    """Everything a bundle states about itself. ``files`` maps relative POSIX paths."""

    schema_version: int
    name: str
    licence: str | None
    edgedec_version: str
    device_target: str
    quantization: str
    models: dict[str, ModelEntry]
    files: dict[str, FileEntry]
    stop_token_ids: tuple[int, ...]
    bos_token_id: int | None
    add_bos: bool
    defaults: dict[str, Any]
    verification: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields that `from_dict` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> BundleManifest:
        """Returns the manifest stated by ``fields``; touches no file.

        Raises:
            BundleError: A key is unknown, missing, or of the wrong type or range.
        """
        reader = Fields(fields, "manifest")
        # The version comes first: a newer schema must not fail with "unknown key".
        version = reader.count("schema_version", most=_MAX_FILE_BYTES)
        if version != SCHEMA_VERSION:
            raise BundleError(
                f"manifest schema version is {version}, this edgedec reads {SCHEMA_VERSION}: "
                "install the edgedec that wrote the bundle, or export the model again"
            )
        reader.only({f.name for f in dataclasses.fields(cls)})
        models = {
            role: _read_model(entry) for role, entry in reader.children("models", known=ROLES)
        }
        if "target" not in models:
            reader.fail("models", sorted(models), "a model in the role 'target'")
        vocab_size = models["target"].config.vocab_size
        manifest = cls(
            schema_version=version,
            name=reader.text("name"),
            licence=reader.optional("licence", reader.text),
            edgedec_version=reader.text("edgedec_version"),
            device_target=reader.text("device_target"),
            quantization=reader.text("quantization"),
            models=models,
            files={path: _read_file_entry(path, e) for path, e in reader.children("files")},
            stop_token_ids=reader.counts("stop_token_ids", most=vocab_size - 1),
            bos_token_id=reader.optional(
                "bos_token_id", lambda key: reader.count(key, most=vocab_size - 1)
            ),
            add_bos=reader.flag("add_bos"),
            defaults=dict(reader.mapping("defaults")),
            verification=dict(reader.mapping("verification")),
        )
        _check_references(manifest)
        return manifest


def read_manifest(folder: Path, are_hashes_checked: bool = True) -> BundleManifest:
    """Returns the validated manifest of the bundle at ``folder``.

    Checks schema, types, ranges and paths first, then that every listed file lies inside the
    folder with the stated size, then the hashes of files up to `SMALL_FILE_BYTES` (a caller
    about to run `damaged_files` over all of them may skip that).

    Raises:
        BundleError: The first violation found.
    """
    manifest = BundleManifest.from_dict(_read_json(folder))
    for path, entry in manifest.files.items():
        _check_file(folder, path, entry)
    for path, entry in manifest.files.items():
        if are_hashes_checked and entry.n_bytes <= SMALL_FILE_BYTES:
            _check_hash(folder, path, entry)
    if are_hashes_checked:
        _check_locations(folder, manifest.models)
    return manifest


def damaged_files(
    folder: Path,
    manifest: BundleManifest,
    on_progress: Callable[[str, int], None] | None = None,
) -> list[str]:
    """Returns the listed files whose content differs from the stated hash.

    on_progress: called with a path and the number of its bytes just read.

    Raises:
        BundleError: A graph, though as it was, reads files that are not listed.
    """
    damaged = []
    for path, entry in manifest.files.items():
        report = None if on_progress is None else lambda n, p=path: on_progress(p, n)
        try:
            _check_file(folder, path, entry)
            if file_sha256(folder / path, report) != entry.sha256:
                damaged.append(path)
        except BundleError:
            damaged.append(path)
    whole = {role: m for role, m in manifest.models.items() if m.graph not in damaged}
    _check_locations(folder, whole)
    return damaged


def file_sha256(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Returns the SHA-256 of a file in lower-case hex.

    Raises:
        BundleError: The file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(4 << 20):
                digest.update(piece)
                if on_bytes is not None:
                    on_bytes(len(piece))
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from None
    return digest.hexdigest()


def _read_json(folder: Path) -> Mapping[str, Any]:
    path = folder / MANIFEST_NAME
    try:
        is_folder = folder.is_dir()
    except OSError as error:
        raise BundleError(f"cannot read a bundle at {folder}: {error.strerror}") from None
    if not is_folder:
        found = "a file" if folder.exists() else "nothing"
        raise BundleError(
            f"{folder}: found {found}, expected a bundle directory (`edgedec export` makes one)"
        )
    if not path.is_file():
        raise BundleError(f"{folder} holds no {MANIFEST_NAME}: it is not an edgedec bundle")
    _check_inside(folder, MANIFEST_NAME)
    try:
        n_bytes = path.stat().st_size
        if n_bytes > MAX_MANIFEST_BYTES:
            raise BundleError(
                f"{path} is {n_bytes} bytes, expected at most {MAX_MANIFEST_BYTES}: "
                "export the model again"
            )
        fields = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BundleError(f"{path} is not JSON ({reason}): export the model again") from None
    if not isinstance(fields, dict):
        raise BundleError(f"{path} holds {shown(fields)}, expected a JSON object")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check_file(folder: Path, path: str, entry: FileEntry) -> None:
    """Raises unless ``path`` is a regular file inside ``folder`` of the stated size."""
    _check_inside(folder, path)
    try:
        status = (folder / path).stat()
    except FileNotFoundError:
        raise BundleError(
            f"{path} is missing from {folder}: copy the bundle again or export the model again"
        ) from None
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot read {path} of {folder}: {error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise BundleError(f"{path} of {folder} is not a regular file")
    if status.st_size != entry.n_bytes:
        raise BundleError(
            f"{path} of {folder} is {status.st_size} bytes, the manifest states {entry.n_bytes}: "
            "copy the bundle again or export the model again"
        )


def _check_inside(folder: Path, path: str) -> None:
    """Raises if symbolic links lead ``path`` out of ``folder``."""
    try:
        resolved = (folder / path).resolve()
        is_inside = resolved.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise BundleError(f"cannot resolve {path} of {folder}: {error}") from None
    if not is_inside:
        raise BundleError(
            f"{path} of {folder} is a link to {resolved}, expected a file inside the bundle"
        )


def _check_hash(folder: Path, path: str, entry: FileEntry) -> None:
    got = file_sha256(folder / path)
    if got != entry.sha256:
        raise BundleError(
            f"{path} of {folder} is damaged (SHA-256 {got[:12]}..., the manifest states "
            f"{entry.sha256[:12]}...): copy the bundle again or export the model again"
        )


def _check_references(manifest: BundleManifest) -> None:
    for role, model in manifest.models.items():
        for path in model.files:
            if path not in manifest.files:
                raise BundleError(
                    f"manifest.models.{role} refers to {shown(path)}, which manifest.files "
                    "does not list: export the model again"
                )
        _check_head_ids(role, model, manifest.files)


def _check_locations(folder: Path, models: Mapping[str, ModelEntry]) -> None:
    """Raises if a graph reads files that are not listed as its model's weights."""
    for role, model in models.items():
        beside = PurePosixPath(model.graph).parent
        for location in sorted(locations(folder / model.graph)):
            if (beside / location).as_posix() not in model.weights:
                raise BundleError(
                    f"{model.graph} reads {shown(location)}, which manifest.models.{role}.weights "
                    "does not list: export the model again"
                )


def _check_head_ids(role: str, model: ModelEntry, files: Mapping[str, FileEntry]) -> None:
    """Raises unless a trimmed head, which only a draft model may have, has a file of its size."""
    size = model.config.trimmed_head_size
    if bool(size) != (model.head_ids is not None) or (size and role != "draft"):
        raise BundleError(
            f"manifest.models.{role} states a trimmed head of {size} tokens and head_ids "
            f"{shown(model.head_ids)}, expected both, in a draft model, or neither: export the "
            "model again"
        )
    if model.head_ids is not None and files[model.head_ids].n_bytes != 4 * size:
        raise BundleError(
            f"{model.head_ids} is {files[model.head_ids].n_bytes} bytes, expected {4 * size} for "
            f"{size} token ids: export the model again"
        )


def _read_file_entry(path: str, fields: Fields) -> FileEntry:
    pure = PurePosixPath(path)
    parts = path.split("/")
    if pure.is_absolute() or any(part in ("", ".", "..") for part in parts):
        fields.fail(None, path, "a relative path without '..'")
    if any(c in path for c in "\\:") or not path.isprintable() or path == MANIFEST_NAME:
        fields.fail(None, path, "a plain relative path with forward slashes")
    fields.only({"n_bytes", "sha256"})
    sha256 = fields.text("sha256")
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        fields.fail("sha256", sha256, "64 lower-case hex digits")
    return FileEntry(fields.count("n_bytes", most=_MAX_FILE_BYTES), sha256)


def _read_model(fields: Fields) -> ModelEntry:
    fields.only({f.name for f in dataclasses.fields(ModelEntry)})
    kind = fields.text("graph_kind")
    if kind not in GRAPH_KINDS:
        fields.fail("graph_kind", kind, f"one of {', '.join(GRAPH_KINDS)}")
    config = _read_config(fields.child("config"))
    formats = fields.mapping("tensor_formats")
    for name, fmt in formats.items():
        if not isinstance(fmt, str) or fmt not in FORMATS:
            fields.fail(f"tensor_formats.{name}", fmt, f"one of {', '.join(FORMATS)}")
    return ModelEntry(
        graph=fields.text("graph"),
        graph_kind=cast(GraphKind, kind),
        weights=fields.texts("weights"),
        config=config,
        context=fields.count("context", least=1),
        hidden_layers=fields.counts("hidden_layers", most=config.n_layers),
        tensor_formats=dict(formats),
        head_ids=fields.younger("head_ids", fields.text),
        name=fields.younger("name", fields.text),
        licence=fields.younger("licence", fields.text),
        kv_format=_read_kv_format(fields, kind),
    )


def _read_kv_format(fields: Fields, graph_kind: str) -> KVFormat | None:
    kv_format = fields.younger("kv_format", fields.text)
    known = KV_FORMATS if graph_kind == "fused" else ()
    if kv_format is not None and kv_format not in known:
        fields.fail("kv_format", kv_format, f"one of {', '.join(known)}" if known else "null")
    return cast(KVFormat | None, kv_format)


def _read_config(fields: Fields) -> ModelConfig:
    """Types are checked here; ranges and combinations by `ModelConfig` itself."""
    scaling = fields.child("rope_scaling")
    scaling.only({f.name for f in dataclasses.fields(RopeScaling)})
    if (kind := scaling.text("kind")) not in _SCALING_KINDS:
        scaling.fail("kind", kind, f"one of {', '.join(_SCALING_KINDS)}")
    for key in ("factor", "low_freq_factor", "high_freq_factor"):
        scaling.number(key)
    scaling.count("original_max_positions", least=1)
    scaling.numbers("factors")
    for field in dataclasses.fields(ModelConfig):
        if field.type == "str":
            fields.text(field.name)
        elif field.name == "trimmed_head_size":
            fields.younger(field.name, fields.count)
        elif field.type == "int":
            fields.count(field.name, least=1)
        elif field.type == "float":
            fields.number(field.name)
        elif field.type == "bool":
            fields.flag(field.name)
    try:
        return ModelConfig.from_dict(dict(fields.values))
    except ConfigError as error:
        raise BundleError(f"{fields.where}: {error}") from None
