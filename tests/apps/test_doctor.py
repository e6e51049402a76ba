"""What doctor finds, and what it says of what is missing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps import doctor
from edgedec.apps.measuring import installed
from edgedec.kernels import library
from edgedec.system import machine
from edgedec.targets import device_target, reporting_targets, target_module
from edgedec.targets.qnn import run_report

Cli = Callable[..., Any]


def test_json(cli: Cli) -> None:
    done = cli("doctor", "--json")
    assert done.exit_code == 0
    report = done.json
    assert report["cpu"]["n_usable"] >= 1
    assert report["memory"]["total_bytes"] > 2**30
    assert all(cache["processors"] for cache in report["last_caches"])
    providers = report["targets"]["ort"]["providers"]
    assert providers["cpu"] is None
    assert set(providers) == {place.name for place in device_target("ort").places}
    assert all(install is None or "pip install" in install for install in providers.values())
    assert report["kernels"]["active_isa"] in report["kernels"]["available_isas"]
    assert report["kernels"]["library"] == str(library.library_path())
    assert {"grammar", "optimum", "dev"} <= set(report["extras"])
    assert report["extras"]["grammar"]["packages"]["llguidance"] == metadata.version("llguidance")
    assert report["problems"] == []


def test_qualcomm_says_what_is_here(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "package_version", lambda name: "2.7.0")
    found = doctor.examine()["targets"]["qnn"]
    assert found["compiles_for"][0] == "SM8350"
    monkeypatch.setattr(run_report, "package_version", lambda name: None)
    assert doctor.examine()["targets"]["qnn"]["runs_on"] is None


def test_every_device_that_says_what_is_here_is_asked(cli: Cli) -> None:
    found = doctor.examine()["targets"]
    assert {"cuda", "openvino", "ort", "qnn"} <= found.keys() == set(reporting_targets())
    text = cli("doctor").out
    assert all(target_module(name, "run_report").TITLE in text for name in found)


def test_text(cli: Cli) -> None:
    done = cli("doctor")
    assert done.exit_code == 0
    for word in ("processor", "last cache", "memory", "onnxruntime", "kernels", "grammar", "ready"):
        assert word in done.out


def test_a_missing_package_is_named_with_its_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        installed, "package_version", lambda name: None if name == "llguidance" else "1.0"
    )
    done = cli("doctor", "--json")
    assert done.exit_code == 0
    grammar = done.json["extras"]["grammar"]
    assert (grammar["is_complete"], grammar["missing"]) == (False, ["llguidance"])
    assert grammar["install"].startswith("pip install 'llguidance>=")
    text = cli("doctor").out
    assert grammar["install"] in text
    rows = [line.split()[:2] for line in text.splitlines()]
    assert ["grammar", "missing"] in rows
    assert ["serve", "present"] in rows


def test_a_missing_library_is_a_problem(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "has_library", lambda: False)
    done = cli("doctor")
    assert done.exit_code == 1
    assert "problem: the kernel library is not built" in done.out


def test_cores_that_share_the_last_cache(tmp_path: Path) -> None:
    """Two clusters of two cores; what is missing or odd is left out."""
    for core in range(4):
        for level, size, shared in (
            (1, "32K", f"{core}"),
            (3, "16M", "0-1" if core < 2 else "2,3"),
        ):
            folder = tmp_path / f"cpu{core}/cache/index{level}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            (folder / "size").write_text(f"{size}\n")
            (folder / "shared_cpu_list").write_text(f"{shared}\n")
    (tmp_path / "cpu3/cache/index4").mkdir()
    (tmp_path / "cpu3/cache/index4/level").write_text("4\n")
    found = machine.last_caches(tmp_path)
    assert [cache.processors for cache in found] == [(0, 1), (2, 3)]
    assert {(cache.level, cache.size_bytes) for cache in found} == {(3, 16 << 20)}
    assert machine.last_caches(tmp_path / "missing") == ()


@pytest.mark.parametrize(
    ("line", "name", "bounds", "extra"),
    [
        ('onnx>=1.19; extra == "export"', "onnx", ">=1.19", "export"),
        ("x<5,>=4.57; extra == 'dev'", "x", "<5,>=4.57", "dev"),
        ('own-name[export,optimum]; extra == "dev"', "own-name", "", "dev"),
        ("numpy>=2.1", "numpy", ">=2.1", None),
    ],
)
def test_requirement_lines(line: str, name: str, bounds: str, extra: str | None) -> None:
    row = installed._DEPENDENCY.match(line)
    assert row is not None
    assert (row["name"], row["bounds"].strip(), row["extra"]) == (name, bounds, extra)


def test_paths_are_printed_in_one_piece(cli: Callable[..., Any]) -> None:
    path = library.library_path()
    assert any(line.endswith(str(path)) for line in cli("doctor").out.splitlines())
