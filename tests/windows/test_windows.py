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


def test_a_bundle_of_this_machine_runs(windows: Machine, here: Machine, exported: Path,
                                       smollm2_bundle: Path) -> None:  # fmt: skip
    request = ("Why is the sky blue?", "-n", 8, "--json")
    found = windows.edgedec("run", windows.path(smollm2_bundle), *request).json
    assert found["token_ids"] == here.edgedec("run", exported, *request).json["token_ids"]


def test_a_chat_in_folders_with_odd_names(windows: Machine, exported: Path, tmp_path: Path) -> None:
    copy = tmp_path / "Fjörd 模型" / "b ü.edgedec"
    shutil.copytree(exported, copy)
    done = windows.edgedec("chat", windows.path(copy), "-n", 4, given="Say ü.\nAgain.\n")
    assert done.exit_code == 0, done.err
    assert done.out.strip()


def test_a_session_is_kept(windows: Machine, exported: Path, tmp_path: Path) -> None:
    session = tmp_path / "s ü.session"
    request = ("run", windows.path(exported), "Hello", "-n", 4, "--json")
    for _ in range(2):
        done = windows.edgedec(*request, "--session", windows.path(session))
        assert done.exit_code == 0, done.err
    assert session.stat().st_size > 0


def test_a_suggestion(windows: Machine, here: Machine, exported: Path) -> None:
    request = ("The capital of France", "--json")
    found = windows.edgedec("suggest", windows.path(exported), *request)
    assert found.exit_code == 0, found.err
    expected = here.edgedec("suggest", exported, *request).json
    texts = [[one["text"] for one in answer["completions"]] for answer in (found.json, expected)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 3
