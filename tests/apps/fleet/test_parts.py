"""Parts of a fleet that need no host."""

from __future__ import annotations

import pkgutil
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

import edgedec
from edgedec import __version__
from edgedec.apps.fleet.combined import combined_device, worst_state
from edgedec.apps.fleet.config import Host
from edgedec.apps.fleet.connection import HostError, Start, worker_command
from edgedec.apps.fleet.install import find_wheel
from edgedec.apps.fleet.keeper import CrewOptions, Keeper
from edgedec.apps.fleet.tls import make_keys
from edgedec.apps.measuring.installed import sources_sha256


def wheels(tmp_path: Path, *platforms: str) -> list[Path]:
    paths = [tmp_path / f"edgedec_runtime-0.1.0-py3-none-{platform}.whl" for platform in platforms]
    for path in paths:
        path.touch()
    return paths


def test_the_wheel_for_a_processor(tmp_path: Path) -> None:
    found = wheels(tmp_path, "manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "macosx_14_0_arm64")
    assert find_wheel(found, "Linux", "aarch64") == found[1]
    assert find_wheel(found, "Darwin", "arm64") == found[2]
    with pytest.raises(HostError, match="it is Linux on riscv64, the wheels here are for"):
        find_wheel(found, "Linux", "riscv64")
    with pytest.raises(HostError, match="it is Linux on aarch64"):
        find_wheel(found[:1], "Linux", "aarch64")


def test_paths_reach_a_shell_whole() -> None:
    host = Host("a", "a", python="it's/bin/python", workspace="/my; reboot")
    place, python = "'/my; reboot'", """"$HOME"/'it'"'"'s/bin/python'"""
    module = "edgedec.apps.fleet.worker"
    command = f"mkdir -p {place}/files && cd {place} && exec {python} -m {module}"
    assert worker_command(host) == command


def test_a_board_that_thinks_it_is_1970_accepts_the_keys() -> None:
    keys = make_keys()
    certificate = x509.load_pem_x509_certificate(keys["cert"].encode())
    assert certificate.not_valid_before_utc.year == 1970
    assert certificate.not_valid_after_utc.year > 2100
    assert make_keys() != keys


def keeper() -> Keeper:
    return Keeper(Host("pi", "pi"), Start("run", False, 1, {}), lambda hello: {}, CrewOptions())


def hello(**more: Any) -> dict[str, Any]:
    reported = {"edgedec": __version__, "sources_sha256": sources_sha256(), "problems": []}
    return {**reported, "clock_s": time.time(), **more}


def test_clocks_that_differ_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    one = keeper()
    one.check(hello(clock_s=time.time() - 86_400))
    assert "pi: its clock is -86400 s off" in capsys.readouterr().err
    one.check(hello(clock_s=time.time() - 86_400))
    assert capsys.readouterr().err == ""  # once is enough


def test_another_version_is_refused() -> None:
    with pytest.raises(HostError, match=r"it has edgedec 0\.0\.1, this machine") as error:
        keeper().check(hello(edgedec="0.0.1"))
    assert error.value.is_final
    with pytest.raises(HostError, match="is of other sources than this machine's: run") as error:
        keeper().check(hello(sources_sha256="0" * 64))
    assert error.value.is_final


def test_an_installation_is_known_by_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the installed modules counts as the same, one changed letter as another."""
    packages = {found.name: Path(str(found.module_finder.path)) / found.name  # type: ignore[union-attr]
                for found in pkgutil.iter_modules(edgedec.__path__) if found.ispkg}  # fmt: skip
    assert {"apps", "models", "runtime"} <= packages.keys()
    copied = tmp_path / "edgedec"
    shutil.copytree(
        Path(edgedec.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name, place in packages.items():
        shutil.copytree(place, copied / name, ignore=shutil.ignore_patterns("*.cc", "*.h", "*.so"))
    here = sources_sha256.__wrapped__()
    monkeypatch.setattr(edgedec, "__path__", [str(copied)])
    assert sources_sha256.__wrapped__() == here
    changed = copied / "runtime/config/checks.py"
    changed.write_text(changed.read_text() + "\n")
    assert sources_sha256.__wrapped__() != here


_DEVICE = {
    "model": "Pi 5", "soc": "bcm2712", "cpu": "Cortex-A76", "architecture": "aarch64",
    "cores": {"Cortex-A76": 4}, "n_usable": 4, "flags": ["asimd", "asimddp"],
    "memory_bytes": 8, "system": "Linux", "kernel": "6.6", "libc": "glibc 2.36",
}  # fmt: skip
_STATE = {
    "governors": ["ondemand"], "mhz": [1500.0, 2400.0], "max_celsius": 61.0, "n_throttled": None,
    "is_throttled": None, "on_battery": False,
}  # fmt: skip


def test_what_several_devices_are_together() -> None:
    rock = {**_DEVICE, "model": "Rock 5B", "cores": {"Cortex-A76": 4, "Cortex-A55": 4},
            "n_usable": 8, "flags": ["asimd"]}  # fmt: skip
    both = combined_device([_DEVICE, rock])
    assert both.model == "Pi 5 + Rock 5B"
    assert both.cpu == "Cortex-A76"
    assert both.cores == {"Cortex-A76": 8, "Cortex-A55": 4}
    assert (both.n_usable, both.memory_bytes, both.flags) == (12, 16, ("asimd",))


def test_the_worst_state_of_several() -> None:
    hot = {**_STATE, "max_celsius": 84.5, "is_throttled": True, "mhz": [600.0, 600.0]}
    state = worst_state([_STATE, hot])
    assert (state.max_celsius, state.is_throttled, state.mhz) == (84.5, True, (600.0, 2400.0))
    assert worst_state([{**_STATE, "mhz": None}]).mhz is None
