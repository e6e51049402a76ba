"""From a run of `bench` or `eval` to a result file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from edgedec.apps.console.option import option
from edgedec.apps.console.terminal import note
from edgedec.apps.measuring.disturbance import LOST_SHARE
from edgedec.apps.results.result import Quantity, Result, Scalar, utc_now, write_result
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import MANIFEST_NAME, BundleManifest
from edgedec.system.device import read_device, read_state

_MAX_LABEL = 100


@dataclass(frozen=True, kw_only=True)
class SaveOptions:
    """Options that keep what was measured."""

    save: Annotated[
        Path | None,
        option(
            "PATH",
            "Keep every repetition in a result file for `edgedec compare`. PATH is a file or "
            "an existing folder.",
        ),
    ] = None
    label: Annotated[str | None, option("TEXT", "What to call this device in the result file.")] = (
        None
    )

    def __post_init__(self) -> None:
        if self.label is not None and self.save is None:
            raise ConfigError("--label names a device in a result file: add --save PATH")
        if self.label is not None and not 0 < len(self.label) <= _MAX_LABEL:
            raise ConfigError(
                f"--label has {len(self.label)} characters, expected 1 to {_MAX_LABEL}"
            )
        if self.save is not None and not self.save.absolute().parent.is_dir():
            raise ConfigError(f"cannot write {self.save}: there is no folder {self.save.parent}")


@dataclass(frozen=True)
class RunMeasurement:
    """What a run measured.

    lost_share: CPU time that others took; None where the system does not tell.
    """

    kind: str
    threads: int
    workload: Mapping[str, Scalar]
    quantities: Sequence[Quantity]
    build: Mapping[str, str | None]
    lost_share: float | None = None
    bound: float = LOST_SHARE
    limits: Mapping[str, Any] | None = None
    energy_by: str | None = None


class Recorder:
    """Keeps a result, if the user wants that. Make it before anything is measured."""

    def __init__(self, save: SaveOptions) -> None:
        self._options = save
        self._before = None if save.save is None else read_state()

    def save(self, bundle: Path, manifest: BundleManifest, measured: RunMeasurement) -> None:
        """Writes the result file, and says where.

        Raises:
            ConfigError: It cannot be written.
        """
        if self._options.save is None or self._before is None:
            return
        is_lost = measured.lost_share is not None and measured.lost_share > measured.bound
        result = Result(
            kind=measured.kind,
            created=utc_now(),
            label=self._options.label,
            device=read_device(),
            before=self._before,
            after=read_state(),
            build=measured.build,
            bundle=bundle_facts(bundle, manifest),
            threads=measured.threads,
            workload=measured.workload,
            quantities=tuple(measured.quantities),
            lost_share=measured.lost_share,
            lost_share_bound=measured.bound,
            is_noisy=is_lost or any(quantity.is_noisy for quantity in measured.quantities),
            limits=measured.limits,
            energy_by=measured.energy_by,
        )
        note(f"wrote {write_result(result, self._options.save)}")


def bundle_facts(bundle: Path, manifest: BundleManifest) -> dict[str, str]:
    """Returns what a result says of a bundle."""
    return {
        "name": manifest.name,
        "quantization": manifest.quantization,
        "target": manifest.device_target,
        "sha256": hashlib.sha256((bundle / MANIFEST_NAME).read_bytes()).hexdigest(),
    }


def texts_sha256(texts: Sequence[object]) -> str:
    """Returns what identifies texts that a run used, without telling them."""
    return hashlib.sha256("\0".join(map(str, texts)).encode()).hexdigest()[:16]
