"""One result: what a run measured, on what, with every repetition; as a file and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from edgedec.models.errors import ConfigError
from edgedec.system.device import Device, DeviceState
from edgedec.system.files import replacing

FORMAT, VERSION = "edgedec-result", 1
_MAX_BYTES = 64 << 20
_SCHEMA = Path(__file__).parent / "schema.json"

Scalar = str | float | bool | None


@dataclass(frozen=True)
class Quantity:
    """One thing that was measured. The fields are those of `schema.json`.

    values: one per repetition; values of one run with the same place were measured side by side.
    weights: how much each value counts; None: all the same. joules: per token, on average.
    work: bytes and multiply-accumulates that the time of a value is for.
    """

    subject: str
    name: str
    unit: str
    is_lower_better: bool
    values: tuple[float, ...]
    is_noisy: bool = False
    joules: float | None = None
    weights: tuple[float, ...] | None = None
    work: tuple[int, int] | None = None


@dataclass(frozen=True)
class Result:
    """What one run measured. The fields are those of `schema.json`."""

    kind: str
    created: str
    label: str | None
    device: Device
    before: DeviceState
    after: DeviceState
    build: Mapping[str, str | None]
    bundle: Mapping[str, str]
    threads: int
    workload: Mapping[str, Scalar]
    quantities: tuple[Quantity, ...]
    lost_share: float | None
    lost_share_bound: float
    is_noisy: bool
    limits: Mapping[str, Any] | None = None
    energy_by: str | None = None

    @property
    def place(self) -> tuple[str | None, str, str, int]:
        """What distinguishes devices: label, model, processor, threads."""
        return self.label, self.device.model or self.device.soc, self.device.cpu, self.threads


def utc_now() -> str:
    """Returns the time as results state it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_document(result: Result) -> dict[str, Any]:
    """Returns a result as JSON objects."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": result.kind,
        "created": result.created,
        "label": result.label,
        "device": _plain(dataclasses.asdict(result.device)),
        "state": {
            "before": _plain(dataclasses.asdict(result.before)),
            "after": _plain(dataclasses.asdict(result.after)),
        },
        "build": dict(result.build),
        "bundle": dict(result.bundle),
        "threads": result.threads,
        "workload": dict(result.workload),
        "limits": None if result.limits is None else dict(result.limits),
        "quantities": [_quantity_document(quantity) for quantity in result.quantities],
        "noise": {
            "lost_share": result.lost_share,
            "bound": result.lost_share_bound,
            "is_noisy": result.is_noisy,
        },
        "energy_by": result.energy_by,
    }


def _quantity_document(quantity: Quantity) -> dict[str, Any]:
    work = None if quantity.work is None else {"bytes": quantity.work[0], "macs": quantity.work[1]}
    return {**_plain(dataclasses.asdict(quantity)), "work": work}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}


def write_result(result: Result, path: Path) -> Path:
    """Writes a result whole or not at all, and returns where.

    path: a file, or a folder, in which the file is named by time, model and kind.

    Raises:
        ConfigError: It cannot be written.
    """
    document = to_document(result)
    _validator()(document)
    if path.is_dir():
        path = _new_file(path, result)
    try:
        with replacing(path) as file:
            text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
            file.write(text.encode() + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def _new_file(folder: Path, result: Result) -> Path:
    time = result.created.replace("-", "").replace(":", "")
    named = "-".join(part for part in (result.label, result.bundle["name"], result.kind) if part)
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in named)
    first = path = folder / f"{time}-{safe[:100]}.json"
    number = 2
    while path.exists():  # Another run ended in the same second.
        path = first.with_stem(f"{first.stem}-{number}")
        number += 1
    return path


def read_result(path: Path) -> Result:
    """Returns the result in a file.

    Raises:
        ConfigError: It cannot be read, is no result, or is one of another version.
    """
    return from_document(_read_json(path), str(path))


def _read_json(path: Path) -> Any:
    if path.is_dir():
        raise ConfigError(
            f"{path} is a folder, expected result files: name them, for example {path}/*.json"
        )
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path} is larger than 64 MB, too large for a result")
        return json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{path} is not a result file, or was cut off: write one with `edgedec bench --save`"
        ) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def from_document(document: Any, source: str) -> Result:
    """Returns the result in JSON objects.

    source: what messages call it.

    Raises:
        ConfigError: The objects do not follow the schema.
    """
    import fastjsonschema

    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(
            f"{source} is not a result of edgedec: write one with `edgedec bench --save`"
        )
    if document.get("version") != VERSION:
        raise ConfigError(
            f"{source} has version {document.get('version')!r}, expected {VERSION}: measure again, "
            "or read it with the edgedec that wrote it"
        )
    try:
        _validator()(document)
    except fastjsonschema.JsonSchemaException as error:
        reason = str(error)[:200]
        raise ConfigError(f"{source} is damaged or was edited: {reason}") from None
    device, state, noise = document["device"], document["state"], document["noise"]
    return Result(
        kind=document["kind"],
        created=document["created"],
        label=document["label"],
        device=Device(**{**device, "flags": tuple(device["flags"])}),
        before=_state(state["before"]),
        after=_state(state["after"]),
        build=document["build"],
        bundle=document["bundle"],
        threads=document["threads"],
        workload=document["workload"],
        quantities=tuple(map(_quantity, document["quantities"])),
        lost_share=noise["lost_share"],
        lost_share_bound=noise["bound"],
        is_noisy=noise["is_noisy"],
        limits=document["limits"],
        energy_by=document["energy_by"],
    )


def _state(values: dict[str, Any]) -> DeviceState:
    mhz = values["mhz"]
    governors = tuple(values["governors"])
    return DeviceState(
        **{**values, "governors": governors, "mhz": None if mhz is None else tuple(mhz)}
    )


def _quantity(values: dict[str, Any]) -> Quantity:
    work = values["work"]
    pair = None if work is None else (work["bytes"], work["macs"])
    weights = values["weights"]
    return Quantity(
        **{
            **values,
            "values": tuple(values["values"]),
            "weights": None if weights is None else tuple(weights),
            "work": pair,
        }
    )


@cache
def _validator() -> Any:
    import fastjsonschema

    return fastjsonschema.compile(json.loads(_SCHEMA.read_text(encoding="utf-8")))
