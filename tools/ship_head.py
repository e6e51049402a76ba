"""Puts a draft head into the distribution `edgedec-heads`, and lists it there.

    edgedec train head coder.edgedec --kind hydra ... -o with.edgedec --head-file head.safetensors
    python tools/ship_head.py qwen2.5-coder-0.5b-instruct coder.edgedec head.safetensors

NAME is the model's name in the catalogue. BUNDLE is of the model that the head was trained for.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tomllib
from pathlib import Path

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.head_file import model_digest, read_head_file
from edgedec.export.heads.shipped_heads import INDEX, config_digest
from edgedec.models.errors import EdgedecError
from edgedec.models.manifest import read_manifest

FOLDER = Path(__file__).parents[1] / "heads/edgedec_heads"


def ship(name: str, bundle: Path, head: Path, folder: Path = FOLDER) -> None:
    """Copies ``head`` into ``folder`` and lists it; EdgedecError if it is not of ``bundle``."""
    target, file = read_manifest(bundle).target, read_head_file(head)
    file.check_fits(model_digest(BundleWeights(bundle, target), target.config), target.config)
    file.weights(target.config)
    path = folder / f"{name}.safetensors"
    if head.resolve() != path.resolve():
        shutil.copyfile(head, path)
    index = folder / INDEX
    listed = tomllib.loads(index.read_text(encoding="utf-8")) if index.is_file() else {}
    listed[name] = {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "config": config_digest(target.config),
    }
    lines = [
        f'["{name}"]\n' + "".join(f'{key} = "{value}"\n' for key, value in entry.items())
        for name, entry in sorted(listed.items())
    ]
    index.write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Does what the command line asks for."""
    parser = argparse.ArgumentParser(description="Put a draft head into edgedec-heads.")
    parser.add_argument("name", help="of the model in the catalogue")
    parser.add_argument("bundle", type=Path, help="of the model")
    parser.add_argument("head", type=Path, help="file that `train head --head-file` wrote")
    options = parser.parse_args()
    try:
        ship(options.name, options.bundle, options.head)
    except EdgedecError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
