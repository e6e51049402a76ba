"""Which compiled code this user trusts: libraries in bundles are executed, not read.

A library is trusted by its hash, noted in a folder that only the user writes to. Exports note what
they compiled; `edgedec inspect --trust-code` notes what somebody else did.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import platformdirs

from edgedec.models.bundle_files import file_sha256
from edgedec.models.errors import BundleError
from edgedec.models.graph import BUNDLED_KERNELS
from edgedec.models.manifest import BundleManifest
from edgedec.targets import library_suffixes


def libraries(folder: Path, manifest: BundleManifest) -> list[Path]:
    """Returns the libraries of the bundle at ``folder``, none if it holds no compiled code."""
    paths = [
        folder / path
        for model in manifest.models.values()
        for path in model.files
        if path.endswith(library_suffixes(model.contract.backend))
    ]
    return [*paths, *(folder / path for path in manifest.files if path == BUNDLED_KERNELS)]


def trust(libraries: Iterable[Path]) -> None:
    """Notes that ``libraries`` may be executed.

    Raises:
        BundleError: One cannot be read, or the notes not be written.
    """
    libraries, folder = list(libraries), _folder()
    if not libraries:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for library in libraries:
            (folder / file_sha256(library)).touch()
    except OSError as error:
        raise BundleError(f"cannot note trusted code in {folder}: {error.strerror}") from None


def check_trusted(library: Path) -> None:
    """Raises a BundleError unless ``library`` may be executed."""
    if not (_folder() / file_sha256(library)).is_file():
        raise BundleError(
            f"{library} is compiled code that you neither made nor trusted, and running the bundle "
            "executes it: if you trust who made it, `edgedec inspect BUNDLE --trust-code`; or "
            "export the model yourself"
        )


def _folder() -> Path:
    return Path(platformdirs.user_data_dir("edgedec")) / "trusted_code"
