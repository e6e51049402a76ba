"""Bundles for another machine: their kernels come along, and are used where there are none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import edgedec
from edgedec import BundleError, ConfigError, EngineOptions, GenerationConfig
from edgedec.export.config import ExportConfig
from edgedec.export.phases import cross_kernels
from edgedec.export.pipeline import export
from edgedec.kernels import library
from edgedec.models.graph import BUNDLED_KERNELS
from edgedec.models.manifest import read_manifest
from edgedec.runtime.backends.trust import libraries, trust
from edgedec.system.machine import machine_triple
from edgedec.targets.triples import TRIPLES, find_triple

GgufMaker = Callable[..., Path]
HERE = machine_triple()
OTHER = next(name for name in TRIPLES if name != HERE)


@pytest.fixture
def make_bundle(
    make_gguf: GgufMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """Exports for a machine, with the kernels of this one: building others takes minutes."""
    built = library.library_path()
    monkeypatch.setattr(cross_kernels, "build_kernels", lambda triple: built)
    monkeypatch.setattr("edgedec.export.pipeline.check_tools", lambda triple: None)

    def make(triple: str) -> Path:
        export(ExportConfig(str(make_gguf("llama")), tmp_path / triple, triple=triple))
        return tmp_path / triple

    return make


@pytest.mark.slow
@pytest.mark.skipif(HERE not in TRIPLES, reason=f"no bundle is made for {HERE}")
def test_kernels_that_came_along_are_used_where_there_are_none(
    make_bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(HERE)
    config = GenerationConfig(max_new_tokens=4, ignore_eos=True)
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        expected = engine.generate("he hello", config).token_ids
    monkeypatch.setattr(library, "_NAMES", ("none",))
    monkeypatch.setattr(library, "_lent", [])
    with pytest.raises(BundleError, match="compiled code that you neither made nor trusted"):
        edgedec.load(bundle)
    trust(libraries(bundle, read_manifest(bundle)))
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        assert library.library_path() == bundle / BUNDLED_KERNELS
        assert engine.generate("he hello", config).token_ids == expected


@pytest.mark.robustness
def test_a_bundle_for_another_machine_is_refused(make_bundle: Callable[[str], Path]) -> None:
    bundle = make_bundle(OTHER)
    assert read_manifest(bundle).target.contract.triple == OTHER
    with pytest.raises(BundleError, match=f"was compiled for {OTHER}, this machine is"):
        edgedec.load(bundle)


@pytest.mark.robustness
@pytest.mark.parametrize("name", ["", "arm", "aarch64-linux-gnu\n", "riscv64-linux-gnu"])
def test_an_unknown_triple_lists_the_known_ones(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected one of aarch64-linux-gnu, x86_64-linux-gnu"):
        ExportConfig("m", tmp_path, triple=name)


@pytest.mark.parametrize("fields", [{"compiler": "tvm"}, {"device_target": "portable"}])
def test_other_graphs_bring_no_kernels(fields: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="export with --target cpu alone"):
        ExportConfig("m", tmp_path, triple=OTHER, **fields)


@pytest.mark.parametrize(
    ("missing", "command"),
    [("cmake", "pip install cmake"), ("g++", "apt-get install g\\+\\+-aarch64-linux-gnu")],
)
def test_a_missing_tool_is_named_before_anything_is_read(
    missing: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def which(name: str, path: str | None = None) -> str | None:
        return None if missing in name else f"/usr/bin/{name}"

    monkeypatch.setattr(shutil, "which", which)
    with pytest.raises(ConfigError, match=command):
        export(ExportConfig("nothing.gguf", tmp_path / "b", triple="aarch64-linux-gnu"))


def test_kernels_that_do_not_build_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cross_kernels, "check_tools", lambda triple: (tmp_path, "false", "c++"))
    with pytest.raises(ConfigError, match="the kernels could not be built"):
        cross_kernels.build_kernels(find_triple(OTHER))
