"""Puts `edgedec type` into a user's session, and takes all of it out again. Nothing needs root."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import platformdirs

from edgedec.models.errors import ConfigError
from edgedec.system.files import replace_text

_UNIT = """[Unit]
Description=Suggestions in every window (edgedec type)
PartOf=graphical-session.target
After=graphical-session.target

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=5

[Install]
WantedBy=graphical-session.target
"""

_AUTOSTART = """[Desktop Entry]
Type=Application
Name=Suggestions in every window
Exec={command}
X-GNOME-Autostart-enabled=true
"""

_COMPONENT = """<?xml version="1.0" encoding="utf-8"?>
<component>
  <name>org.edgedec.Type</name><description>edgedec</description><version>1</version>
  <license>Apache-2.0</license><author>edgedec</author><exec>{command}</exec><textdomain/>
  <engines><engine>
    <name>edgedec</name><longname>edgedec</longname><language>other</language>
    <description>Suggestions from a language model</description><license>Apache-2.0</license>
    <author>edgedec</author><icon/><layout>default</layout><rank>0</rank><symbol>✎</symbol>
  </engine></engines>
</component>
"""

_ENVIRONMENT = """IBUS_COMPONENT_PATH={folder}:/usr/share/ibus/component
IBUS_ENABLE_SYNC_MODE=1
"""
"""The latter for GTK 4, Qt and Firefox, which mix up keys that are typed fast."""

_SOURCES = (
    ("org.gnome.desktop.input-sources", "sources", ("ibus", "edgedec")),
    ("org.freedesktop.ibus.general", "preload-engines", "edgedec"),
)
"""Lists of GNOME's and of IBus' own settings, and our item in them."""

_UNIT_NAME = "edgedec-type.service"


@dataclass(frozen=True)
class _Files:
    """Where the parts lie."""

    unit: Path
    autostart: Path
    component: Path
    environment: Path

    @classmethod
    def of_user(cls) -> _Files:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return cls(
            config / "systemd" / "user" / _UNIT_NAME,
            config / "autostart" / "edgedec-type.desktop",
            Path(platformdirs.user_data_dir("edgedec")) / "ibus" / "edgedec.xml",
            config / "environment.d" / "60-edgedec-type.conf",
        )

    @property
    def present(self) -> list[Path]:
        every = (self.unit, self.autostart, self.component, self.environment)
        return [path for path in every if path.exists()]


def install(arguments: Sequence[str]) -> list[str]:
    """Has ``edgedec type`` started with each session, with these arguments; returns what was done.

    Raises:
        ConfigError: A file cannot be written.
    """
    files = _Files.of_user()
    command = shlex.join([sys.executable, "-m", "edgedec", "type", *arguments])
    has_units = _run("systemctl", "--user", "show-environment") is not None
    starter, form = (files.unit, _UNIT) if has_units else (files.autostart, _AUTOSTART)
    texts = {
        starter: form.format(command=command.replace("%", "%%")),
        files.component: _COMPONENT.format(command=escape(command)),
        files.environment: _ENVIRONMENT.format(folder=files.component.parent),
    }
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, text)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    done = [f"wrote {path}" for path in texts]
    if has_units:
        _run("systemctl", "--user", "daemon-reload")
        _run("systemctl", "--user", "enable", "--now", _UNIT_NAME)
        done.append(f"started {_UNIT_NAME}")
    return done + [f"added edgedec to {schema} {key}" for schema, key in _change_sources(True)]


def uninstall() -> list[str]:
    """Takes out all that `install` put in; returns what was done."""
    files, done = _Files.of_user(), []
    if files.unit.exists():
        _run("systemctl", "--user", "disable", "--now", _UNIT_NAME)
    for path in files.present:
        try:
            path.unlink()
        except OSError as error:
            raise ConfigError(f"cannot remove {path}: {error.strerror}") from None
        done.append(f"removed {path}")
    with suppress(OSError):
        files.component.parent.rmdir()
    return done + [f"took edgedec out of {schema} {key}" for schema, key in _change_sources(False)]


def status() -> list[str]:
    """Returns what is installed and whether our engine is the chosen one."""
    chosen = (_run("ibus", "engine") or "none").strip()
    present = [f"installed: {path}" for path in _Files.of_user().present]
    return [*(present or ["installed: no"]), f"IBus' engine now: {chosen}"]


def _change_sources(is_added: bool) -> list[tuple[str, str]]:
    """Adds our item to lists of input sources, or takes it out; returns those that changed."""
    changed = []
    for schema, key, item in _SOURCES:
        text = _run("gsettings", "get", schema, key)
        if text is None:
            continue
        try:
            now = list(ast.literal_eval(text.strip().removeprefix("@a(ss)").removeprefix("@as")))
        except (ValueError, SyntaxError):
            continue
        if is_added == (item in now) or (is_added and not now):
            continue  # an empty list stands for what the desktop finds out: ours would be alone
        new = [*now, item] if is_added else [source for source in now if source != item]
        if _run("gsettings", "set", schema, key, str(new) if new else "[]") is not None:
            changed.append((schema, key))
    return changed


def _run(*command: str) -> str | None:
    """Returns what a program prints; None if there is none, or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
