"""Command lines with odd options: a result, or an error of one line, whatever the verb.

    python tools/fuzz/command_lines.py --tries 5000 --seconds 500

Each is a process of its own, in a folder with tiny bundles, texts and files that are neither. One
that takes long is interrupted, and has to end then. Called again it goes on.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pieces import run_tries
from tiny_kinds import KINDS, make_kinds

from edgedec.apps.verbs import VERBS, make_app

LEFT_OUT = {"desktop", "lsp", "pull"}
"""They wait for somebody, or reach a network."""
LONGEST_S, END_S = 20, 10
N_OF_A_FOLDER = 40
"""Tries after which the files are made anew."""

BUNDLES = list(KINDS)
GOOD: dict[str, list[str]] = {
    "--corpus": ["words.txt", "folder"], "--prompts": ["prompts.jsonl"], "--from": ["draft"],
    "--calibrate": ["words.txt"], "--draft": ["draft", "plain"],
    "--output": ["new", "other"], "--store": ["new.store"], "--session": ["new.session"],
    "--exit": ["1"], "--layers": ["1", "many"], "--method": ["plain", "auto", "draft"],
    "--switch": ["ead", "margin", "bild"], "--threshold": ["0.5", "auto"], "--json-schema": ["{}"],
    "--regex": ["[ab]+"], "--hidden-layers": ["0,1,2"], "--kind": ["eagle", "hydra"],
}  # fmt: skip
SHORT = {
    "--max-new-tokens": "4", "--max-tokens": "1500", "--epochs": "1", "--repetitions": "1",
    "--minutes": "0.05",
}  # fmt: skip
"""What makes long work short, where nothing else was chosen."""
FILES = ["words.txt", "empty", "bytes", "prompts.jsonl", "odd.jsonl", "folder", "new", "other"]
ODD = [
    *FILES, *BUNDLES, "tiny.gguf", "nothing", "/nope/x", "/dev/null", "", ".", "300" * 100, "x",
    "1", "-1", "0.5", "1,2", "a=1", "all", "nan", "\u00e9", "\x1b[31m", "--",
]  # fmt: skip

PROGRAM = [sys.executable, "-c", "from edgedec.apps.cli import main; main()"]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields every verb below ``command``, with the words that call it."""
    below = getattr(command, "commands", {})
    for name, below_ in below.items():
        if name not in LEFT_OUT:
            yield from commands(below_, (*path, name))
    if not below:
        yield path, command


def value_of(option: Any, rng: random.Random) -> str:
    """Returns something to give ``option``: what it may take, or is near to it, or is odd."""
    kind = option.type
    if (name := option.opts[0]) in GOOD and rng.random() < 0.6:
        return rng.choice(GOOD[name])
    if hasattr(kind, "choices"):
        known = [str(getattr(choice, "value", choice)) for choice in kind.choices]
        return rng.choice([*known, "x"])
    if kind.name in ("integer", "integer range"):
        least = getattr(kind, "min", None) or 0
        return str(rng.choice([least, least - 1, 1, 2, 3, 8, 64, 1000, 2**63]))
    if kind.name in ("float", "float range"):
        return rng.choice(["0", "1", "0.5", "-1", "nan", "inf", "1e300", "1e-300"])
    return rng.choice(ODD)


def command_line(rng: random.Random) -> list[str]:
    """Returns the words of a random verb, what it is about, and some options."""
    path, command = rng.choice(list(commands(typer.main.get_command(make_app(VERBS)))))
    words, options = list(path), []
    for parameter in command.params:
        if parameter.param_type_name == "option":
            options.append(parameter)
        elif parameter.required or rng.random() < 0.5:
            words.append(rng.choice(BUNDLES if rng.random() < 0.7 else ODD))
    free = [
        option for option in options if not option.required and option.name not in ("help", "debug")
    ]
    chosen = [option for option in options if option.required]
    for parameter in chosen + rng.sample(free, min(len(free), rng.randrange(5))):
        words.append(rng.choice(parameter.opts + parameter.secondary_opts))
        words += [] if parameter.is_flag else [value_of(parameter, rng)]
    short = {name for option in options for name in option.opts} & SHORT.keys() - set(words)
    return [*words, *(word for name in sorted(short) for word in (name, SHORT[name]))]


def make_files(folder: Path, kinds: dict[str, Path]) -> None:
    """Fills ``folder`` with what command lines name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in BUNDLES:
        shutil.copytree(kinds[name], folder / name)
    shutil.copy(kinds["plain"].parent / "tiny.gguf", folder)
    (folder / "words.txt").write_text("some words, and more of them\n" * 200)
    (folder / "empty").touch()
    (folder / "bytes").write_bytes(bytes(range(256)) * 50)
    (folder / "prompts.jsonl").write_text('{"prompt": "ab cd"}\n{"prompt": "x y"}\n')
    (folder / "odd.jsonl").write_text('{"task_id": 1}\n[1]\n"x"\n')
    (folder / "folder").mkdir()
    for number in range(8):
        (folder / f"folder/{number}.txt").write_text(f"abc def {number} " * 40)


def try_one(number: int, folder: Path) -> int:
    """Calls the program in ``folder``; returns its exit code.

    Raises:
        SystemExit: It ended as it should not, or did not.
    """
    words = command_line(random.Random(number))
    home = str(folder.parent / "home")  # where `models remove` may remove
    caches = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), home)
    with subprocess.Popen(
        [*PROGRAM, *words], cwd=folder, env=os.environ | caches, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            _, printed = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                _, printed = process.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise SystemExit(f"{number}: {words} does not end") from None
    code = process.returncode
    n_errors = sum(line.startswith("error: ") for line in printed.splitlines())
    is_odd = any(word in printed for word in ("error: unexpected", "Traceback", "Warning:"))
    if is_odd or code not in (0, 1, 2, 130) or n_errors != (code == 1):
        raise SystemExit(f"{number}: {words} ended with {code}\n{printed}")
    return code


def check_some(first: int, n: int) -> int:
    """Tries ``n`` command lines; raises SystemExit at one that ends as it should not."""
    with tempfile.TemporaryDirectory() as name:
        kinds = make_kinds(Path(name))
        for number in range(first, first + n):
            if (number - first) % N_OF_A_FOLDER == 0:
                make_files(Path(name) / "files", kinds)
            try_one(number, Path(name) / "files")
    return n


if __name__ == "__main__":
    sys.exit(run_tries(__doc__, "command_lines", 5000, lambda n_done: check_some(n_done, 40)))
