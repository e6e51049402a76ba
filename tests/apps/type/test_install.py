"""What `edgedec type --install` puts into a session is gone after `--uninstall`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.apps.type.default_model import default_model
from edgedec.export.library import user_library

EDGEDEC = [sys.executable, "-c", "from edgedec.apps.cli import main; main()", "type"]
GNOME = ("org.gnome.desktop.input-sources", "sources")


def run(home: Path, *command: str) -> str:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
        "HOME": str(home),
        "GSETTINGS_BACKEND": "keyfile",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(home: Path) -> set[str]:
    found = (path.relative_to(home) for path in home.rglob("*") if path.is_file())
    return {str(path) for path in found if path.parts[:2] != (".config", "glib-2.0")}


@pytest.mark.slow
def test_install_and_uninstall(tmp_path: Path, small_bundle: Path) -> None:
    before = files(tmp_path)
    done = run(tmp_path, *EDGEDEC, str(small_bundle), "--threads", "1", "--install")
    written = files(tmp_path) - before
    assert len(written) == 3
    assert all(str(tmp_path / name) in done for name in written)
    starter = next(tmp_path / n for n in written if n.endswith((".service", ".desktop")))
    assert f"-m edgedec type {small_bundle} --threads 1" in starter.read_text()
    (environment,) = tmp_path.glob(".config/environment.d/*edgedec*.conf")
    assert "IBUS_ENABLE_SYNC_MODE=1" in environment.read_text().splitlines()
    assert "installed: " in run(tmp_path, *EDGEDEC, "--status")
    run(tmp_path, *EDGEDEC, "--uninstall")
    assert files(tmp_path) == before
    assert "installed: no" in run(tmp_path, *EDGEDEC, "--status")


@pytest.mark.skipif(
    not shutil.which("gsettings"), reason="needs the program gsettings (Debian: libglib2.0-bin)"
)
@pytest.mark.slow
def test_input_source_beside_the_users(tmp_path: Path, small_bundle: Path) -> None:
    try:
        run(tmp_path, "gsettings", "set", *GNOME, "[('xkb', 'de')]")
    except AssertionError:
        pytest.skip("needs the schemas of GNOME's settings (Debian: gsettings-desktop-schemas)")
    run(tmp_path, *EDGEDEC, str(small_bundle), "--install")
    assert run(tmp_path, "gsettings", "get", *GNOME) == "[('xkb', 'de'), ('ibus', 'edgedec')]\n"
    run(tmp_path, *EDGEDEC, str(small_bundle), "--install")
    assert run(tmp_path, "gsettings", "get", *GNOME) == "[('xkb', 'de'), ('ibus', 'edgedec')]\n"
    run(tmp_path, *EDGEDEC, "--uninstall")
    assert run(tmp_path, "gsettings", "get", *GNOME) == "[('xkb', 'de')]\n"


def test_model_that_nobody_named(
    tmp_path: Path, small_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the best of those that were made by name, or else the one that a package has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    assert default_model() == "smollm2-135m-instruct"
    made = user_library().bundle("qwen2.5-coder-0.5b-instruct")
    made.parent.mkdir(parents=True)
    made.symlink_to(small_bundle)
    assert default_model() == "qwen2.5-coder-0.5b-instruct"
    run(tmp_path, *EDGEDEC, "--install")
    starter = next(tmp_path.glob(".config/*/*edgedec-type.desktop"), None)
    starter = starter or tmp_path / ".config" / "systemd" / "user" / "edgedec-type.service"
    assert f"-m edgedec type {made}\n" in starter.read_text()
