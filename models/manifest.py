"""What a bundle states about itself: `manifest.json`, validated completely before use."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn

from edgedec.models.bundle_files import (
    SMALL_FILE_BYTES,
    FileEntry,
    check_file,
    check_hash,
    check_inside,
    check_place,
)
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.fields import Fields, shown
from edgedec.models.graph import ONNX_SUFFIX
from edgedec.models.model_entry import DRAFT_MODEL, TARGET_MODEL, ModelEntry, read_model_entry
from edgedec.models.onnx_locations import locations
from edgedec.models.source_tokens import SourceText

if TYPE_CHECKING:
    from edgedec.models.draft_heads import HeadEntry
    from edgedec.models.kv_maps import MapsEntry
    from edgedec.models.pooling import EmbeddingConfig

SCHEMA_VERSION = 3
MANIFEST_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.json"
"""Files that every bundle holds."""
DENSE_NAME = "dense.bin"
"""File of the matrices behind the pooling of an embedding model."""

TUNED_KEY = "switch"
"""Where `BundleManifest.defaults` holds what `edgedec tune` found."""

EDITS_KEY = "edits"
"""Where it holds what `edgedec bench --edits --calibrate` found, by the format of edits."""

MAX_MANIFEST_BYTES = 64 << 20
_MAX_FILE_BYTES = 2**62
_EXPORT_AGAIN = "export the model again"


@dataclass(frozen=True)
class BundleManifest:
    """Everything a bundle states about itself.

    models: by a name of the exporter's choice, which is also the folder of their files. files: by
    relative POSIX path. auxiliary: what was trained beside the models, by name; may be absent.
    head: a draft head of the target model, if one was trained. source: of an encoder-decoder model
    what its texts begin and end with. embedding: of an embedding model how texts become
    vectors. opening_token_ids: what plain text
    begins with. template_variables: what the chat template may name.
    """

    schema_version: int
    name: str
    licence: str | None
    edgedec_version: str
    device_target: str
    quantization: str
    models: dict[str, ModelEntry]
    files: dict[str, FileEntry]
    stop_token_ids: tuple[int, ...]
    opening_token_ids: tuple[int, ...]
    template_variables: dict[str, str | tuple[str, ...]]
    defaults: dict[str, Any]
    verification: dict[str, Any]
    auxiliary: dict[str, MapsEntry] = field(default_factory=dict)
    head: HeadEntry | None = None
    source: SourceText | None = None
    embedding: EmbeddingConfig | None = None

    @property
    def target(self) -> ModelEntry:
        """The model whose distribution counts."""
        return self.models[self.target_name]

    @property
    def target_name(self) -> str:
        """Name of the target model."""
        return next(name for name, entry in self.models.items() if entry.kind == TARGET_MODEL)

    @property
    def draft_name(self) -> str | None:
        """Name of the draft model, if there is one."""
        names = (name for name, entry in self.models.items() if entry.kind == DRAFT_MODEL)
        return next(names, None)

    def check_writes(self) -> None:
        """Raises a ConfigError where the target model is an encoder, which writes no texts."""
        if self.target.config.is_embedder:
            raise ConfigError(
                f"{self.name} makes vectors of texts and writes none: use a model that writes"
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields that `from_dict` reads back."""
        fields = dataclasses.asdict(self)
        for name, entry in self.models.items():
            fields["models"][name]["config"] = entry.config.canonical()
        for key in ("source", "embedding"):
            if getattr(self, key) is None:
                del fields[key]
        if self.head is None:
            del fields["head"]
        else:
            fields["head"]["head"]["config"] = self.head.head.config.canonical()
            if self.head.token_pairs is None:
                del fields["head"]["token_pairs"]
            if self.head.joined is not None:
                fields["head"]["joined"]["config"] = self.head.joined.config.canonical()
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> BundleManifest:
        """Returns the manifest stated by ``fields``; touches no file.

        Raises:
            BundleError: A key is unknown, missing, or of the wrong type or range.
        """
        reader = Fields(fields, "manifest", BundleError, _EXPORT_AGAIN)
        # The version comes first: another schema must not fail with "unknown key".
        version = reader.integer("schema_version", least=0, most=_MAX_FILE_BYTES)
        if version != SCHEMA_VERSION:
            advice = (
                "export the model again"
                if version < SCHEMA_VERSION
                else "install the edgedec that wrote the bundle, or export the model again"
            )
            raise BundleError(
                f"manifest: schema_version is {version}, this edgedec reads {SCHEMA_VERSION}: "
                f"{advice}"
            )
        optional = {"auxiliary", "head", "source", "embedding"}
        optional_keys = {key for key in optional if reader.get(key) is not None}
        known = {f.name for f in dataclasses.fields(cls)} - optional
        reader.exactly(known | optional_keys)
        models = {name: read_model_entry(name, entry) for name, entry in reader.tables("models")}
        _check_kinds(reader, models)
        # Ids of the bundle's own tokenizer.
        last_id = next(m for m in models.values() if m.kind == TARGET_MODEL).config.vocab_size - 1
        manifest = cls(
            schema_version=version,
            name=reader.text("name"),
            licence=reader.optional("licence", reader.text),
            edgedec_version=reader.text("edgedec_version"),
            device_target=reader.text("device_target"),
            quantization=reader.text("quantization"),
            models=models,
            files={path: _read_file_entry(path, e) for path, e in reader.tables("files")},
            stop_token_ids=reader.integers("stop_token_ids", 0, last_id),
            opening_token_ids=reader.integers("opening_token_ids", 0, last_id),
            template_variables=_read_variables(reader.table("template_variables")),
            defaults=dict(reader.table("defaults").values),
            verification=dict(reader.table("verification").values),
            auxiliary=_read_auxiliary(reader) if "auxiliary" in optional_keys else {},
            head=_read_head(reader) if "head" in optional_keys else None,
            source=_read_source(reader, last_id) if "source" in optional_keys else None,
            embedding=_read_embedding(reader, last_id) if "embedding" in optional_keys else None,
        )
        _check_references(manifest)
        return manifest


def _read_variables(fields: Fields) -> dict[str, str | tuple[str, ...]]:
    return {
        name: fields.text(name) if isinstance(value, str) else fields.texts(name)
        for name, value in fields.values.items()
    }


def fingerprint_of(manifest: BundleManifest, name: str) -> str:
    """Returns what identifies all that decides the rows of the KV cache of the model ``name``."""
    entry = manifest.models[name]
    facts = {
        "config": entry.config.canonical(),
        "files": [manifest.files[path].sha256 for path in entry.files],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def read_manifest(folder: Path, are_hashes_checked: bool = True) -> BundleManifest:
    """Returns the validated manifest of the bundle at ``folder``.

    Checks schema, types, ranges and paths first, then that every listed file lies inside the
    folder with the stated size, then the hashes of files up to `SMALL_FILE_BYTES` (a caller
    about to run `damaged_files` over all of them may skip that).

    Raises:
        BundleError: The first violation found.
    """
    check_place(folder)
    manifest = BundleManifest.from_dict(_read_json(folder))
    for path, entry in manifest.files.items():
        check_file(folder, path, entry)
    for path, entry in manifest.files.items():
        if are_hashes_checked and entry.n_bytes <= SMALL_FILE_BYTES:
            check_hash(folder, path, entry)
    if are_hashes_checked:
        check_locations(folder, manifest)
    return manifest


def _read_json(folder: Path) -> Mapping[str, Any]:
    path = folder / MANIFEST_NAME
    try:
        is_folder = folder.is_dir()
    except OSError as error:
        raise BundleError(f"cannot read a bundle at {folder}: {error.strerror}") from None
    if not is_folder:
        from edgedec.models.file_kinds import file_kind  # few runs name what is no bundle

        kind = file_kind(folder) if folder.exists() else "nothing"
        raise BundleError(
            f"{folder}: found {kind}, expected a bundle directory (`edgedec export` makes one)"
        )
    if not path.is_file():
        raise BundleError(
            f"{folder} holds no {MANIFEST_NAME}: it is not a bundle (`edgedec export` makes one)"
        )
    check_inside(folder, MANIFEST_NAME)
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
    raise ValueError(f"{name} is not a JSON number")


def _check_kinds(reader: Fields, models: Mapping[str, ModelEntry]) -> None:
    """Raises unless there is one target model, and at most one draft model."""
    for kind, most in ((TARGET_MODEL, 1), (DRAFT_MODEL, 1)):
        n = sum(entry.kind == kind for entry in models.values())
        if n > most or (kind == TARGET_MODEL and n == 0):
            expected = "one" if kind == TARGET_MODEL else "at most one"
            reader.refuse_with("models", f"are {n} of the kind {kind}, expected {expected}")


def _check_references(manifest: BundleManifest) -> None:
    if (manifest.source is None) != (manifest.target.encoder is None):
        raise BundleError(
            f"manifest: there is {'no' if manifest.source is None else 'a'} source and "
            f"{'no' if manifest.target.encoder is None else 'an'} encoder of the target model, "
            f"expected both or neither: {_EXPORT_AGAIN}"
        )
    _check_embedding(manifest)
    named = {f"models.{name}": model.files for name, model in manifest.models.items()}
    named |= {f"auxiliary.{name}": entry.files for name, entry in manifest.auxiliary.items()}
    named |= {} if manifest.head is None else {"head": manifest.head.files}
    for name, files in named.items():
        for path in files:
            if path not in manifest.files:
                raise BundleError(
                    f"manifest: {name} refers to {shown(path)}, which files do not list: "
                    f"{_EXPORT_AGAIN}"
                )
    for name, model in manifest.models.items():
        _check_head_ids(f"models.{name}", model, manifest.files)
    if manifest.head is not None:
        _check_head_ids("head", manifest.head.head, manifest.files)


def _check_embedding(manifest: BundleManifest) -> None:
    """Raises unless an embedding model says how texts become vectors, and its files are there."""
    config, embedding = manifest.target.config, manifest.embedding
    if config.is_embedder and embedding is None:
        raise BundleError(
            f"manifest: embedding is missing, which an embedding model has: {_EXPORT_AGAIN}"
        )
    if embedding is None:
        return
    try:
        embedding.check_dense(config.hidden_size)
    except ConfigError as error:
        raise BundleError(f"manifest: embedding: {error}: {_EXPORT_AGAIN}") from None
    if embedding.dense and DENSE_NAME not in manifest.files:
        raise BundleError(f"manifest: files do not list {DENSE_NAME}: {_EXPORT_AGAIN}")


def check_locations(folder: Path, manifest: BundleManifest) -> None:
    """Raises if an ONNX graph reads files that are not listed as its weights.

    What other graphs read is known to their devices, and checked when one is opened.
    """
    for name, model in manifest.models.items():
        if model.graph.endswith(ONNX_SUFFIX):
            paths = locations(folder / model.graph)
            _check_listed(f"models.{name}", model.graph, model.weights, paths)
        if model.encoder is not None:
            paths = locations(folder / model.encoder)
            _check_listed(f"models.{name}", model.encoder, model.weights, paths)
    for name, entry in manifest.auxiliary.items():
        paths = locations(folder / entry.graph)
        _check_listed(f"auxiliary.{name}", entry.graph, (entry.weights,), paths)
    if manifest.head is not None:
        for name, model in manifest.head.models.items():
            _check_listed(name, model.graph, model.weights, locations(folder / model.graph))


def _check_listed(name: str, graph: str, weights: tuple[str, ...], read: set[str]) -> None:
    beside = PurePosixPath(graph).parent
    for location in sorted(read):
        if (beside / location).as_posix() not in weights:
            raise BundleError(
                f"{graph} reads {shown(location)}, which manifest.{name}.weights does not "
                "list: export the model again"
            )


def _check_head_ids(name: str, model: ModelEntry, files: Mapping[str, FileEntry]) -> None:
    """Raises unless a trimmed head, which only a draft model may have, has a file of its size."""
    size = model.config.trimmed_head_size
    if bool(size) != (model.head_ids is not None) or (size and model.kind != DRAFT_MODEL):
        raise BundleError(
            f"manifest: {name} states a trimmed head of {size} tokens and head_ids "
            f"{shown(model.head_ids)}, expected both, in a draft model, or neither: {_EXPORT_AGAIN}"
        )
    if model.head_ids is not None and files[model.head_ids].n_bytes != 4 * size:
        raise BundleError(
            f"{model.head_ids} is {files[model.head_ids].n_bytes} bytes, expected {4 * size} for "
            f"{size} token ids: {_EXPORT_AGAIN}"
        )


def _read_file_entry(path: str, fields: Fields) -> FileEntry:
    pure = PurePosixPath(path)
    parts = path.split("/")
    if pure.is_absolute() or any(part in ("", ".", "..") for part in parts):
        fields.fail(None, path, "a relative path without '..'")
    if any(c in path for c in "\\:") or not path.isprintable() or path == MANIFEST_NAME:
        fields.fail(None, path, "a plain relative path with forward slashes")
    fields.exactly({"n_bytes", "sha256"})
    sha256 = fields.text("sha256")
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        fields.fail("sha256", sha256, "64 lower-case hex digits")
    return FileEntry(fields.integer("n_bytes", least=0, most=_MAX_FILE_BYTES), sha256)


def _read_head(reader: Fields) -> HeadEntry:
    from edgedec.models.draft_heads import read_head

    return read_head("head", reader.table("head"))


def _read_source(reader: Fields, last_id: int) -> SourceText:
    source = reader.table("source")
    source.exactly({f.name for f in dataclasses.fields(SourceText)})
    return SourceText(
        source.integers("closing_token_ids", 0, last_id),
        source.integer("start_token_id", least=0, most=last_id),
    )


def _read_embedding(reader: Fields, last_id: int) -> EmbeddingConfig:
    from edgedec.models.pooling import read_embedding

    return read_embedding(reader.table("embedding"), last_id)


def _read_auxiliary(reader: Fields) -> dict[str, MapsEntry]:
    if not (entries := reader.tables("auxiliary")):
        return {}
    from edgedec.models.kv_maps import read_kv_maps

    return {name: read_kv_maps(name, entry) for name, entry in entries}
