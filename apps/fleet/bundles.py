"""Which bundle a host gets: the only one, or the one for its kind of machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec.apps.fleet.connection import HostError
from edgedec.apps.fleet.shipped import Shipped, ship_bundle
from edgedec.models.errors import ConfigError
from edgedec.models.graph import ANY_TRIPLE
from edgedec.models.manifest import MANIFEST_NAME, BundleManifest, read_manifest

SUFFIX = ".edgedec"


class Bundles:
    """A bundle, or a folder of them, one for each kind of machine, as `fleet export` makes it."""

    def __init__(self, path: Path) -> None:
        """Reads all manifests.

        Raises:
            ConfigError: There is none.
            BundleError: A bundle is damaged, or they are of different models.
        """
        is_alone = (path / MANIFEST_NAME).is_file()
        folders = [path] if is_alone else sorted(path.glob(f"*{SUFFIX}"))
        if not folders:
            raise ConfigError(
                f"{path} is no bundle and has none: make bundles with `edgedec fleet export`"
            )
        self._shipped = [ship_bundle(folder) for folder in folders]
        self._manifests = [read_manifest(folder) for folder in folders]
        names = {(manifest.name, manifest.quantization) for manifest in self._manifests}
        if len(names) > 1:
            raise ConfigError(f"{path} has bundles of different models: name one of them")

    @property
    def any_bundle(self) -> tuple[Path, BundleManifest]:
        """A bundle that says what all have in common: model, tokenizer, context."""
        return self._shipped[0].folder, self._manifests[0]

    @property
    def alias(self) -> str:
        """What tasks call the bundle, whichever of them a host has."""
        names = "".join(shipped.name for shipped in self._shipped)
        return hashlib.sha256(names.encode()).hexdigest()[:32]

    def for_host(self, hello: Mapping[str, Any]) -> Shipped:
        """Returns the bundle that runs on a host.

        Raises:
            HostError: None does.
        """
        triple = hello["triple"]
        made: list[str] = []
        for shipped, manifest in zip(self._shipped, self._manifests, strict=True):
            triples = {model.contract.triple for model in manifest.models.values()} - {ANY_TRIPLE}
            if triples <= {triple}:
                return shipped
            made += sorted(triples)
        raise HostError(
            f"it is {triple}, the bundle was compiled for {', '.join(dict.fromkeys(made))}: "
            "export for it with `edgedec fleet export`",
            is_final=True,
        )
