"""Windows' Python under Wine: the bits, tokens and bundles of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgedec.export.checkpoints.catalogue import find_installed

from .conftest import Machine

DIGESTS = "tests/arm/digests.py"
WRITTEN = "tests/windows/written.py"

pytestmark = pytest.mark.windows


def installed_model() -> Path:
    path = find_installed("smollm2-135m-instruct")
    assert path is not None
    return path


@pytest.fixture(scope="session")
def exported(windows: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's bundle, exported by Windows."""
    path = tmp_path_factory.mktemp("windows") / "smollm2.edgedec"
    done = windows.edgedec("export", windows.path(installed_model()), "-o", windows.path(path))
    assert done.exit_code == 0, done.err
    return path


def test_kernels_give_the_same_bits(windows: Machine, here: Machine) -> None:
    assert windows.python(DIGESTS, "kernels").json == here.python(DIGESTS, "kernels").json


def test_an_export_writes_the_same_files(here: Machine, exported: Path, tmp_path: Path) -> None:
    """All but the manifest, which states errors measured with another NumPy."""
    own = tmp_path / "smollm2.edgedec"
    done = here.edgedec("export", installed_model(), "-o", own)
    assert done.exit_code == 0, done.err
    names = {path.relative_to(own) for path in own.rglob("*") if path.is_file()}
    assert names == {path.relative_to(exported) for path in exported.rglob("*") if path.is_file()}
    for name in names - {Path("manifest.json")}:
        assert (exported / name).read_bytes() == (own / name).read_bytes(), name


def test_the_same_tokens(windows: Machine, here: Machine, exported: Path) -> None:
    """Twenty prompts, plain, auto and sampled."""
    on_windows = windows.python(WRITTEN, windows.path(exported)).json
    assert on_windows == here.python(WRITTEN, exported).json
    assert {name: len(rows) for name, rows in on_windows.items()} == {
        "plain": 20, "auto": 20, "sampled": 20
    }  # fmt: skip


def test_a_bundle_is_replaced(windows: Machine, exported: Path, tmp_path: Path) -> None:
    copy = tmp_path / "b.edgedec"
    shutil.copytree(exported, copy)
    model = windows.path(installed_model())
    done = windows.edgedec("export", model, "-o", windows.path(copy), "--force")
    assert done.exit_code == 0, done.err
    assert [path.name for path in tmp_path.iterdir()] == ["b.edgedec"]
