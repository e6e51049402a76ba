"""A bundle appears whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedec.export import bundle as bundles
from edgedec.export.bundle import bundle_folder, hash_files, write_manifest
from edgedec.export.config import ExportConfig
from edgedec.export.phases.recipe_phases import recipe_phases
from edgedec.export.pipeline import FIRST_PHASES, export
from edgedec.models.bundle_files import damaged_files
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import read_manifest

from ..models.conftest import make_manifest

pytestmark = pytest.mark.robustness


def write_file(folder: Path, content: str = "whole") -> None:
    (folder / "file").write_text(content)


def write_old_bundle(path: Path) -> None:
    """Makes what --force takes for a bundle."""
    path.mkdir()
    (path / "manifest.json").write_text('{"edgedec_version": "0.0.1"}')


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_appears_at_the_end(tmp_path: Path) -> None:
    destination = tmp_path / "b.edgedec"
    with bundle_folder(destination) as folder:
        write_file(folder)
        assert not destination.exists()
        assert folder.parent == tmp_path
    assert names(tmp_path) == ["b.edgedec"]
    assert (destination / "file").read_text() == "whole"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), bundle_folder(tmp_path / "new" / "deep" / "b") as folder:
        write_file(folder)
        raise error
    assert names(tmp_path) == []


@pytest.mark.parametrize("path", ["\udcff.edgedec", "\udcff/b.edgedec"])
def test_a_path_that_is_no_text_is_refused_at_once(tmp_path: Path, path: str) -> None:
    with pytest.raises(BundleError, match="is not UTF-8"), bundle_folder(tmp_path / path):
        pass
    assert names(tmp_path) == []


def test_a_model_whose_name_is_no_text(tmp_path: Path) -> None:
    manifest = dataclasses.replace(make_manifest(tmp_path), name="m\udcff")
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path).name == "m\udcff"


def test_refuses_to_overwrite(tmp_path: Path) -> None:
    destination = tmp_path / "b"
    write_old_bundle(destination)
    with pytest.raises(BundleError, match=r"exists already.*--force"), bundle_folder(destination):
        raise AssertionError
    assert names(tmp_path) == ["b"]


def test_force_swaps(tmp_path: Path) -> None:
    destination = tmp_path / "b"
    write_old_bundle(destination)
    with bundle_folder(destination, is_overwrite_allowed=True) as folder:
        write_file(folder)
        assert (destination / "manifest.json").exists()
    assert names(tmp_path) == ["b"]
    assert names(destination) == ["file"]


def test_force_without_an_exchange_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "exchange", lambda a, b: False)
    test_force_swaps(tmp_path)


def test_force_through_a_link(tmp_path: Path) -> None:
    write_old_bundle(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with bundle_folder(tmp_path / "link", is_overwrite_allowed=True) as folder:
        write_file(folder)
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == ["file"]


def test_force_replaces_nothing_but_bundles(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter").write_text("years of work")
    with (
        pytest.raises(BundleError, match="not an edgedec bundle"),
        bundle_folder(thesis, is_overwrite_allowed=True),
    ):
        raise AssertionError
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(BundleError, match="not an edgedec bundle"),
        bundle_folder(tmp_path / "file", is_overwrite_allowed=True),
    ):
        raise AssertionError
    assert (thesis / "chapter").read_text() == "years of work"


def test_the_destination_may_appear_meanwhile(tmp_path: Path) -> None:
    destination = tmp_path / "b"
    with pytest.raises(BundleError, match="exists already"), bundle_folder(destination) as folder:
        write_file(folder)
        write_old_bundle(destination)
    assert names(tmp_path) == ["b"]
    assert names(destination) == ["manifest.json"]


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    destination = tmp_path / "b[1]*"
    (tmp_path / ".b[1]*.partial-01234567").mkdir()
    (tmp_path / ".other.partial-89abcdef").mkdir()
    (tmp_path / ".my.partial-thoughts").mkdir()
    with bundle_folder(destination) as alive:
        with bundle_folder(destination, is_overwrite_allowed=True) as second:
            assert names(tmp_path) == sorted([".my.partial-thoughts", alive.name, second.name])
            write_file(second, "second")
        assert alive.exists()
        (destination / "manifest.json").write_text('{"edgedec_version": "0.0.1"}')
        (destination / "file").unlink()
        (destination / "manifest.json").unlink()
        destination.rmdir()
        write_file(alive, "first")
    assert (destination / "file").read_text() == "first"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line(tmp_path: Path, number: int) -> None:
    with pytest.raises(BundleError) as caught, bundle_folder(tmp_path / "b") as folder:
        write_file(folder)
        raise OSError(number, os.strerror(number))
    assert "no space left" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB; skips where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_an_export_fills_the_disk(tiny_disk: Path, smollm2_gguf: Path) -> None:
    with pytest.raises(BundleError, match="no space left"):
        export(ExportConfig(source=str(smollm2_gguf), destination=tiny_disk / "b"))
    assert names(tiny_disk) == []


def test_an_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="cannot write"), bundle_folder(tmp_path / "file" / "b"):
        raise AssertionError


def test_hashes_cover_every_file(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "x").write_bytes(b"abc")
    (tmp_path / "manifest.json").write_text("{}")
    files = hash_files(tmp_path)
    assert list(files) == ["target/x"]
    assert files["target/x"].n_bytes == 3
    assert files["target/x"].sha256.startswith("ba7816bf")


@pytest.mark.slow
def test_a_failing_phase_leaves_nothing(smollm2_gguf: Path, tmp_path: Path) -> None:
    destination = tmp_path / "b"
    source = str(smollm2_gguf)
    for config in (
        ExportConfig(source=source, destination=destination, context=8193),
        ExportConfig(source=source, destination=destination, hidden_layers=(31,)),
        ExportConfig(source=source, destination=destination, quantization="int4"),
    ):
        with pytest.raises(ConfigError):
            export(config)
        assert names(tmp_path) == []


@pytest.mark.slow
def test_the_bundle_is_as_the_manifest_says(smollm2_bundle: Path) -> None:
    manifest = read_manifest(smollm2_bundle)
    assert damaged_files(smollm2_bundle, manifest.files) == []
    found = {p.relative_to(smollm2_bundle).as_posix() for p in smollm2_bundle.rglob("*.*")}
    assert found == {*manifest.files, "manifest.json"}
    assert manifest.verification["top1_agreement"] == 1.0
    assert manifest.models["target"].tensor_formats["embed_tokens.weight"] == "q8_0"


@pytest.mark.slow
def test_progress_names_every_phase_in_order(smollm2_gguf: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    def stop_at_verify(phase: str, done: int, total: int) -> None:
        seen.append((phase, done, total))
        if phase == "verify":
            raise KeyboardInterrupt

    config = ExportConfig(
        source=str(smollm2_gguf), destination=tmp_path / "b", dump_passes=tmp_path / "dump"
    )
    with pytest.raises(KeyboardInterrupt):
        export(config, stop_at_verify)
    phases = [name for name, _ in FIRST_PHASES + recipe_phases("fused")]
    assert phases[2:] == [
        "check weights",
        "quantise",
        "emit",
        "fuse",
        "pack",
        "set offsets",
        "verify",
    ]
    assert list(dict.fromkeys(p for p, _, _ in seen)) == phases
    packed = [(done, total) for phase, done, total in seen if phase == "pack"]
    assert packed == sorted(packed)
    assert packed[-1][0] == packed[-1][1] > 90_000_000
    assert names(tmp_path) == ["dump"]
    assert names(tmp_path / "dump")[0] == "00_portable.onnx"
    assert len(names(tmp_path / "dump")) > 5


@pytest.mark.slow
def test_killed_exports_leave_nothing_or_a_whole_bundle(small_model: Path, tmp_path: Path) -> None:
    """Half of the kills hit the export early, half around the last phases."""
    rng = random.Random(7)
    destination = tmp_path / "b"
    code = (
        "import sys; from pathlib import Path; from edgedec.export.config import ExportConfig; "
        "from edgedec.export import pipeline; "
        "pipeline.export(ExportConfig(source=sys.argv[1], destination=Path(sys.argv[2]), "
        "is_overwrite_allowed=True), lambda p, d, t: print(p, flush=True) if not t else None)"
    )
    n_whole = 0
    for trial in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(small_model), str(destination)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        awaited = "seal" if trial % 2 else "read"
        assert any(line.strip() == awaited for line in process.stdout)
        time.sleep(rng.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if destination.exists():
            n_whole += 1
            assert damaged_files(destination, read_manifest(destination).files) == []
    assert len(names(tmp_path)) <= 2  # the bundle, and what the last one left behind
    export(ExportConfig(str(small_model), destination, is_overwrite_allowed=True))
    assert names(tmp_path) == ["b"]
    assert n_whole < 6


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_export_that_is_reported_to_end_cleans_up(
    smollm2_gguf: Path, tmp_path: Path, number: signal.Signals
) -> None:
    program = [sys.executable, "-c", "from edgedec.apps.cli import main; main()"]
    process = subprocess.Popen(
        [*program, "export", str(smollm2_gguf), "-o", str(tmp_path / "deep" / "b")],
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup's jobs ignore it
    )
    while not any(path.is_file() for path in tmp_path.rglob("*")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert b"Traceback" not in err
    assert names(tmp_path) == []


def test_a_name_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="has 300 bytes"), bundle_folder(tmp_path / ("é" * 150)):
        raise AssertionError
