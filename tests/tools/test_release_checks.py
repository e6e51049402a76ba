"""Each check of tools/release passes a good wheel and fails a bad one."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / "tools/release"
sys.path.insert(0, str(RELEASE))

from library_checks import expected_exports, library_faults  # noqa: E402
from platforms import PLATFORMS, Platform, find_platform  # noqa: E402
from wheel_checks import (  # noqa: E402
    HEADS,
    MAX_BYTES,
    heads_faults,
    read_project,
    sdist_faults,
    wheel_faults,
)

LINUX, WINDOWS, MACOS = (
    find_platform(tag) for tag in ("manylinux_2_28_x86_64", "win_amd64", "macosx_14_0_arm64")
)


def compile_library(
    folder: Path, platform: Platform, names: set[str], isas: tuple[str, ...], *options: str
) -> bytes:
    """Returns a library that exports ``names`` and mentions ``isas``.

    ``options`` are lines of C or, with a leading dash, for the compiler. The C library is linked
    where the option -lc asks for it: making it for a platform takes long.
    """
    lines = [line for line in options if not line.startswith("-")]
    quoted = ", ".join(f'"{isa}"' for isa in isas)
    lines.append(f"static const char* const isas[] = {{{quoted}}};")
    lines.append("SHOWN const void* RegisterCustomOps(void) { return isas; }")
    others = sorted(names - {"RegisterCustomOps"})
    lines += [f"SHOWN void {name}(void) {{}}" for name in others]
    if "-lc" not in options and platform.system == "Windows":
        lines.append("int DllMainCRTStartup(void) { return 1; }")
    source, out = folder / "library.c", folder / platform.library
    is_windows = platform.system == "Windows"
    shown = "__declspec(dllexport)" if is_windows else '__attribute__((visibility("default")))'
    source.write_text(f"#define SHOWN {shown}\n" + "\n".join(lines) + "\n")
    flags = [option for option in options if option.startswith("-")]
    flags += [] if "-lc" in options else ["-nostdlib"]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", platform.target, "-shared", "-O1"]
    command += ["-g0", "-s", "-fvisibility=hidden", "-o", str(out), str(source), *flags]
    subprocess.run(command, check=True, cwd=folder)
    return out.read_bytes()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A library without faults for each of three systems, by the platform's tag."""
    folder = tmp_path_factory.mktemp("libraries")
    return {
        platform.tag: compile_library(folder, platform, expected_exports(), platform.isas)
        for platform in (LINUX, WINDOWS, MACOS)
    }


def write_wheel(folder: Path, library: bytes, **changes: bytes | None) -> Path:
    """Writes a wheel for Linux; ``changes`` are files by name, None for one that is left out."""
    project = read_project()
    info = f"{project.stem}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: {project.name}\nVersion: {project.version}\n"
    files: dict[str, bytes | None] = {
        "edgedec/__init__.py": b"",
        "edgedec/py.typed": b"",
        "edgedec/apps/cli.py": b"",
        "edgedec/export/heads/shipped_heads.py": b"",
        f"edgedec/kernels/{LINUX.library}": library,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: py3-none-{LINUX.tag}\n".encode(),
        f"{info}/entry_points.txt": b"[console_scripts]\nedgedec = edgedec.apps.cli:main\n",
        f"{info}/licenses/LICENSE": b"Apache-2.0",
    }
    for name, data in changes.items():
        files[name.replace("INFO", info)] = data
    record = []
    path = folder / f"{project.stem}-py3-none-{LINUX.tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            if data is None:
                continue
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            record.append(f"{name},sha256={digest},{len(data)}")
            wheel.writestr(name, data)
        if "INFO/RECORD" not in changes:
            wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]))
    return path


def test_the_sources_export_the_operators() -> None:
    assert {"RegisterCustomOps", "edgedec_linear", "edgedec_pool_open"} <= expected_exports()


@pytest.mark.parametrize("platform", [LINUX, WINDOWS, MACOS], ids=lambda one: one.tag)
def test_a_good_library_has_no_faults(platform: Platform, libraries: dict[str, bytes]) -> None:
    assert library_faults(libraries[platform.tag], platform) == []


@pytest.mark.parametrize("platform", [LINUX, WINDOWS, MACOS], ids=lambda one: one.tag)
@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (("SHOWN void _Znwm(void) {}",), "exports _Znwm"),
        ((), "does not export edgedec_linear"),
        ((), "has no kernels for {isa}"),
    ],
)
def test_names_and_instruction_sets_are_counted(
    platform: Platform, lines: tuple[str, ...], fault: str, tmp_path: Path
) -> None:
    isas = platform.isas
    names = expected_exports()
    if "does not export" in fault:
        names -= {"edgedec_linear"}
    if "kernels for" in fault:
        isas, fault = isas[:-1], fault.format(isa=isas[-1])
    data = compile_library(tmp_path, platform, names, isas, *lines)
    assert library_faults(data, platform) == [fault]


def test_libraries_of_another_platform_are_refused(libraries: dict[str, bytes]) -> None:
    assert library_faults(libraries[WINDOWS.tag], LINUX) == ["got PE, expected ELF"]
    assert library_faults(b"no library at all", LINUX) == ["got no library, expected ELF"]
    other = find_platform("manylinux_2_28_aarch64")
    (fault,) = library_faults(libraries[LINUX.tag], other)
    assert fault == "got code for X86_64, expected ARM64"


USES = "void stranger(void); SHOWN void edgedec_linear(void) { stranger(); }"


def test_undefined_symbols_are_found(tmp_path: Path) -> None:
    names = expected_exports() - {"edgedec_linear"}
    allow = "-Wl,-z,undefs"
    data = compile_library(tmp_path, LINUX, names, LINUX.isas, USES, allow)
    assert library_faults(data, LINUX) == ["stranger is undefined"]
    allow = "-Wl,-undefined,dynamic_lookup"
    data = compile_library(tmp_path, MACOS, names, MACOS.isas, USES, allow)
    assert library_faults(data, MACOS) == ["_stranger is undefined"]


@pytest.mark.slow
def test_systems_older_than_promised_are_served(tmp_path: Path) -> None:
    newer = replace(LINUX, target="x86_64-linux-gnu.2.36")
    line = (
        "char* arc4random_uniform(int); SHOWN void edgedec_linear(void) { arc4random_uniform(1); }"
    )
    names = expected_exports() - {"edgedec_linear"}
    data = compile_library(tmp_path, newer, names, LINUX.isas, line, "-lc")
    (fault,) = library_faults(data, LINUX)
    assert fault == "arc4random_uniform needs GLIBC_2.36, newer than 2.28"
    newer = replace(MACOS, target="aarch64-macos.15.0")
    data = compile_library(tmp_path, newer, expected_exports(), MACOS.isas)
    assert library_faults(data, MACOS) == ["needs macOS 15.0.0, expected 14.0"]


def test_other_libraries_are_not_needed(tmp_path: Path) -> None:
    line = "int MessageBeep(int); SHOWN void edgedec_linear(void) { MessageBeep(0); }"
    names = expected_exports() - {"edgedec_linear"}
    data = compile_library(tmp_path, WINDOWS, names, WINDOWS.isas, line, "-luser32")
    assert library_faults(data, WINDOWS) == ["needs USER32.dll"]


def test_a_good_wheel_has_no_faults(tmp_path: Path, libraries: dict[str, bytes]) -> None:
    assert wheel_faults(write_wheel(tmp_path, libraries[LINUX.tag])) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"edgedec/py.typed": None}, "lacks edgedec/py.typed"),
        ({f"edgedec/kernels/{LINUX.library}": None}, f"lacks edgedec/kernels/{LINUX.library}"),
        ({f"edgedec/kernels/{WINDOWS.library}": b"MZ"}, f"holds edgedec/kernels/{WINDOWS.library}"),
        ({"edgedec/kernels/src/ops.cc": b""}, "holds edgedec/kernels/src/ops.cc"),
        ({"tests/test_layers.py": b""}, "holds tests/test_layers.py"),
        ({"edgedec/__pycache__/a.pyc": b""}, "holds edgedec/__pycache__/a.pyc"),
        ({"INFO/WHEEL": b"Tag: cp311-cp311-linux_x86_64\n"}, "WHEEL has tags ['cp311-cp311-linux"),
        ({"INFO/METADATA": b"Name: edgedec\nVersion: 0.4\n"}, "METADATA has edgedec 0.4, expected"),
        ({"INFO/entry_points.txt": b""}, "installs no command edgedec"),
        ({"INFO/RECORD": b"edgedec/py.typed,sha256=x,0"}, "edgedec/__init__.py is not as RECORD"),
        ({"edgedec/big.bin": bytes(MAX_BYTES)}, "has 5.0 MB, expected 5 at most"),
    ],
)
def test_a_bad_wheel_is_refused(
    changes: dict[str, bytes | None], fault: str, tmp_path: Path, libraries: dict[str, bytes]
) -> None:
    faults = wheel_faults(write_wheel(tmp_path, libraries[LINUX.tag], **changes))
    assert any(line.startswith(fault) for line in faults), faults


def test_faults_of_the_library_are_those_of_the_wheel(
    tmp_path: Path, libraries: dict[str, bytes]
) -> None:
    faults = wheel_faults(write_wheel(tmp_path, libraries[MACOS.tag]))
    assert faults == [f"edgedec/kernels/{LINUX.library}: got MACHO, expected ELF"]


def write_heads_wheel(folder: Path, **changes: bytes | None) -> Path:
    """Writes the wheel of the heads with one small head; None leaves a file out."""
    stem = read_project(HEADS).stem
    listed = f'[tiny]\nfile = "tiny.safetensors"\nsha256 = "{hashlib.sha256(b"w").hexdigest()}"\n'
    files: dict[str, bytes | None] = {
        "edgedec_heads/__init__.py": b"",
        "edgedec_heads/heads.toml": listed.encode(),
        "edgedec_heads/tiny.safetensors": b"w",
        f"{stem}.dist-info/licenses/LICENSE": b"Apache",
    }
    files |= {name.replace("INFO", f"{stem}.dist-info"): data for name, data in changes.items()}
    kept = {name: data for name, data in files.items() if data is not None}
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()[:-1]},1\n"
        for name, data in kept.items()
    )
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in {**kept, f"{stem}.dist-info/RECORD": record.encode()}.items():
            wheel.writestr(name, data)
    return path


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({}, []),
        ({"edgedec_heads/x.so": b""}, ["holds edgedec_heads/x.so"]),
        ({"INFO/licenses/LICENSE": None}, ["lacks its licence"]),
        (
            {"edgedec_heads/tiny.safetensors": b"other"},
            ["edgedec_heads/tiny.safetensors is not as heads.toml says"],
        ),
    ],
)
def test_the_wheel_of_the_heads(
    changes: dict[str, bytes | None], faults: list[str], tmp_path: Path
) -> None:
    assert heads_faults(write_heads_wheel(tmp_path, **changes)) == faults


def test_a_wheel_of_heads_that_lacks_one_is_refused(tmp_path: Path) -> None:
    path = write_heads_wheel(tmp_path, **{"edgedec_heads/tiny.safetensors": None})
    assert "tiny.safetensors" in heads_faults(path)[0]
    assert heads_faults(tmp_path / "other.whl")[0].startswith("got other.whl, expected edgedec_h")


def test_files_that_are_no_wheels_are_refused(tmp_path: Path) -> None:
    stem = read_project().stem
    for name, fault in {
        f"{stem}-cp311-cp311-linux_x86_64.whl": "expected",
        f"{stem}-py3-none-musllinux_1_2_x86_64.whl": "no wheel is made for musllinux_1_2_x86_64",
        f"{stem}-py3-none-{LINUX.tag}.whl": "not a zip file",
    }.items():
        (tmp_path / name).write_bytes(b"nothing")
        assert fault in wheel_faults(tmp_path / name)[0]
    assert sdist_faults(tmp_path / "edgedec-0.4.tar.gz")[0].startswith("got edgedec-0.4.tar.gz")


def test_platforms_have_tags_of_their_own() -> None:
    assert len({platform.tag for platform in PLATFORMS}) == 5


def test_pages_name_wheels_that_are_built() -> None:
    stem = read_project().stem
    built = {f"{stem}-py3-none-{platform.tag}.whl" for platform in PLATFORMS}
    built.add(f"{read_project(HEADS).stem}-py3-none-any.whl")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    names = set(re.findall(r"[\w.-]+\.whl\b", text))
    assert names
    assert names <= built
