"""How a bundle is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.runtime.config.checks import check_count, check_type, checked_counts, checked_path
from edgedec.system.processors import processors
from edgedec.targets.device_target import PlaceOption


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How a bundle is loaded; the defaults suit one model on a machine of its own.

    threads: threads of the kernels; one for each processor of ``affinity``, or for each of the
        machine's physical cores, when None.
    context: most tokens of prompt and output together; the bundle's own when None.
    draft: another bundle whose model drafts; True for the bundle's own draft model, if it has one,
        False for none. It takes no memory until a method uses it.
    head: whether the bundle's draft head may draft, if it has one.
    draft_threads: threads of the draft model; as many as the target model's when None.
    prefix_cache_mb: most memory for what earlier prompts left, so that prompts that take turns are
        not computed anew; 0 for none. Nothing is copied before another prompt comes.
        Units: 10**6 bytes.
    prefix_disk_mb: most bytes of the disk for beginnings of texts, so that the next start or
        another process need not compute them; 0 for none. They are written when the engine is
        closed; their owner alone may read them. Units: 10**6 bytes.
    prefix_folder: where these lie; in the user's cache folder when None. It is made if missing, and
        must be the user's alone.
    affinity: the processors that threads stay on, one for each; the first is for the thread that
        calls, and only while the model computes. Wherever the system puts them when None.
    store: file of the n-gram store that the methods ``store`` and ``auto`` draft from; made if
        there is none.
    is_store_growing: whether the texts of these methods are added to the store.
    provider: ONNX Runtime's, a place of the device target ort; the bundle's first when None. A
        draft model runs on it, too, if its graph can.
    device: OpenVINO's, a place of the device target openvino, for its bundles; the CPU when None. A
        draft model runs on it, too, if its graph can.
    draft_provider, draft_device: of the draft model alone.
    """

    threads: int | None = None
    context: int | None = None
    draft: bool | str | Path = True
    head: bool = True
    draft_threads: int | None = None
    prefix_cache_mb: int = 256
    prefix_disk_mb: int = 0
    prefix_folder: str | Path | None = None
    affinity: Sequence[int] | None = None
    store: str | Path | None = None
    is_store_growing: bool = True
    provider: str | None = None
    device: str | None = None
    draft_provider: str | None = None
    draft_device: str | None = None

    def __post_init__(self) -> None:
        for name in ("threads", "draft_threads", "context"):
            if (value := getattr(self, name)) is not None:
                check_count(name, value, 1, "None leaves the choice to edgedec")
        for name in ("threads", "draft_threads"):
            value = getattr(self, name)
            if value is not None and value > processors():
                raise ConfigError(
                    f"{name} is {shown(value)}, expected at most {processors()}, this machine's "
                    "processors"
                )
        if not isinstance(self.draft, bool):
            checked_path("draft", self.draft)
        for name in ("store", "prefix_folder"):
            if (path := getattr(self, name)) is not None:
                checked_path(name, path)
        for name in ("provider", "draft_provider"):
            _check_place("provider", name, getattr(self, name))
        for name in ("device", "draft_device"):
            _check_place("device", name, getattr(self, name))
        for name in ("prefix_cache_mb", "prefix_disk_mb"):
            check_count(name, getattr(self, name), 0, "0 for none")
        if self.affinity is not None:
            checked_counts("affinity", self.affinity, "processors")
        check_type("head", self.head, bool, "true or false")
        check_type("is_store_growing", self.is_store_growing, bool, "true or false")


def _check_place(kind: PlaceOption, name: str, value: object) -> None:
    """Raises a ConfigError unless the option ``name`` names a place of its ``kind``, or is None."""
    if value is None:
        return
    check_type(name, value, str, f"the name of a {kind} or None")
    from edgedec.targets import place_target  # most texts name none: it delays a first token

    place_target(kind).place(str(value), name)
