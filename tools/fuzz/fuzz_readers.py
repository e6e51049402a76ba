"""Fuzzes a reader of strangers' files, guided by coverage, and goes on where it was left.

    python tools/fuzz/fuzz_readers.py gguf --inputs 1000000 --seconds 500

runs for at most so many seconds, adds them up in build/fuzz/gguf/progress.json, and exits with 0
when there were so many inputs, else with 3: call it again. What fails lies in build/fuzz/gguf, and
is tried again with `--replay FILE`. `--keep N` copies the N smallest inputs that reach all that was
reached to tools/fuzz/corpus. Needs `pip install atheris`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import struct
import subprocess
import sys
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tools/fuzz/corpus"
LIMITS = ("-rss_limit_mb=2048", "-malloc_limit_mb=1024", "-timeout=20")
SEEDS = (
    "llama-F32", "llama-Q4_0", "qwen2-Q8_0", "float16", "float32", "fp8", "gptq", "awq", "panels",
    "rows", "external", "bpe", "short", "blocks", "file", "parts",
)  # fmt: skip
"""Whole inputs, made by seeds.py; what else the corpus holds was found."""

NOT_YET = 3
"""Exit code: there are inputs left to try."""

ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 0.5, 1e300, 2**31, 2**63, 10**30, "", "a", "\x1b[2J", "../x", "/x",
    "float16", "q4_1", "F16", "I32", "F8_E4M3", [], [0], [[]], {}, {"a": 0},
)  # fmt: skip


def main() -> int:
    """Runs what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("reader")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=500)
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--keep", type=int)
    parser.add_argument("--in-process", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process is not None:
        fuzz(options.reader, options.in_process)
    folder = ROOT / "build/fuzz" / options.reader
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    if options.replay:
        replay(options.reader, options.replay)
        return 0
    if options.keep:
        keep(options.reader, folder, options.keep)
        return 0
    return one_piece(options.reader, folder, options.inputs, options.seconds)


def fuzz(reader: str, options: list[str]) -> None:
    """Hands this process to libFuzzer, which ends it."""
    import atheris

    # Atheris sees nothing of what an editable install's own loader brings in.
    sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
    sys.path.insert(0, str(ROOT / "build/typing"))
    with atheris.instrument_imports(include=["edgedec"]):
        from readers import READERS

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        edited = json_edited(content, rng) if rng.random() < 0.5 else None
        return edited[:most] if edited else atheris.Mutate(content, most)

    settings = {"custom_mutator": mutate} if reader in ("bundle", "safetensors", "session") else {}
    atheris.Setup([sys.argv[0], *options], READERS[reader], **settings)
    atheris.Fuzz()


def json_edited(content: bytes, rng: random.Random) -> bytes | None:
    """Returns ``content`` with one value of a table in it replaced, or None if it holds none.

    How long it is, with spaces behind it, stands before a safetensors file's: that stays right.
    """
    starts = [match.start() for match in re.finditer(rb'\{"', content)]
    outermost = [s for s in starts if s == 0 or content[s - 1 : s] in (b"\n", b"\0")]
    if not outermost:
        return None
    start = rng.choice(outermost)
    try:
        table, length = json.JSONDecoder().raw_decode(content[start:].decode("latin-1"))
    except (ValueError, RecursionError):
        return None
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        edit(table, rng)
    if rng.random() < 0.5:
        mend_places(table)
    new = json.dumps(table).encode("latin-1", "replace")
    before, behind = content[:start], content[start + length :]
    (header_length,) = struct.unpack("<Q", before[-8:].rjust(8, b"\xff"))
    if 0 <= header_length - length <= len(behind) and not behind[: header_length - length].strip(
        b" "
    ):
        before = before[:-8] + struct.pack("<Q", len(new) + header_length - length)
    return before + new + behind


def edit(table: Any, rng: random.Random) -> None:
    """Replaces, removes or copies one value somewhere inside ``table``."""
    places = [(table, key) for key in keys(table)]
    for holder, key in places:
        places += [(holder[key], inner) for inner in keys(holder[key])]
    if not places:
        return
    holder, key = rng.choice(places)
    match rng.randrange(4):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1:
            alike = [place for place in places if place[1] == key and rng.random() < 0.9]
            other, its = rng.choice(alike or places)
            if its in keys(other):
                holder[key] = deepcopy(other[its])
        case 2 if isinstance(holder[key], int | float) and abs(holder[key]) < 2**70:
            holder[key] += rng.choice((-1, 1, 16, -16, 2**32))
        case _:
            holder[key] = deepcopy(rng.choice(ODD_VALUES))


def mend_places(table: Any) -> None:
    """Has tensors of a safetensors header lie where their types and shapes ask for no other size.

    What contradicts itself is refused before anything else looks at it.
    """
    for tensor in table.values() if isinstance(table, dict) else ():
        if not isinstance(tensor, dict) or not isinstance(shape := tensor.get("shape"), list):
            continue
        n_bytes = {"F32": 4, "I32": 4, "F16": 2, "F8_E4M3": 1}.get(str(tensor.get("dtype")))
        if n_bytes and all(type(n) is int and n >= 0 for n in shape):
            tensor["data_offsets"] = [0, n_bytes * math.prod(shape)]


def keys(value: Any) -> list[Any]:
    """Returns what indexes ``value``: its keys, its numbers, or nothing."""
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list) else []


def one_piece(reader: str, folder: Path, n_wanted: int, seconds: int) -> int:
    """Fuzzes for some seconds and writes down how far that came."""
    progress = folder / "progress.json"
    done = json.loads(progress.read_text()) if progress.exists() else {"inputs": 0, "seconds": 0}
    n_left = n_wanted - done["inputs"]
    if n_left > 0:
        n_inputs, n_seconds, failure = libfuzzer(reader, folder, n_left, seconds)
        done["inputs"] += n_inputs
        done["seconds"] += n_seconds
        progress.write_text(json.dumps(done) + "\n")
        if failure:
            print(f"{reader}: {failure}", file=sys.stderr)
            return 1
    print(f"{reader}: {done['inputs']} of {n_wanted} inputs in {done['seconds']} s")
    return 0 if done["inputs"] >= n_wanted else NOT_YET


def libfuzzer(reader: str, folder: Path, n_inputs: int, seconds: int) -> tuple[int, int, str]:
    """Returns the inputs tried, the seconds they took, and how the run failed, if it did."""
    options = [
        f"-runs={n_inputs}", f"-max_total_time={seconds}", f"-artifact_prefix={folder}/",
        "-print_final_stats=1", "-max_len=32768", *LIMITS, f"{folder}/corpus", f"{CORPUS}/{reader}",
    ]  # fmt: skip
    command = [sys.executable, __file__, reader, "--in-process", *options]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    report = ended.stdout + ended.stderr
    (folder / "last.log").write_text(report)
    counts = [int(n) for n in re.findall(r"number_of_executed_units:\s*(\d+)", report)]
    if not counts:
        raise SystemExit(f"{reader}: atheris did not run:\n{report[-2000:]}")
    took = re.search(r"runs in (\d+) second", report)
    failed = re.search(r"Test unit written to (\S+)", report)
    failure = f"failed, see {folder}/last.log and {failed[1]}" if failed else ""
    return counts[-1], int(took[1]) if took else 0, failure


def replay(reader: str, path: Path) -> None:
    """Gives one input to a reader, uninstrumented."""
    from readers import READERS

    READERS[reader](path.read_bytes())
    print(f"{reader} takes {path}, or refuses it in one line")


def keep(reader: str, folder: Path, most: int) -> None:
    """Copies a few inputs that together reach what the whole corpus reaches, small ones first."""
    with tempfile.TemporaryDirectory() as merged:
        options = ["-merge=1", *LIMITS, merged, f"{CORPUS}/{reader}", f"{folder}/corpus"]
        command = [sys.executable, __file__, reader, "--in-process", *options]
        subprocess.run(command, capture_output=True, check=True)
        files = sorted(Path(merged).iterdir(), key=lambda path: path.stat().st_size)
        for path in files[:most]:
            (CORPUS / reader / path.name[:12]).write_bytes(path.read_bytes())
    print(f"{reader}: kept {min(most, len(files))} of {len(files)}")


if __name__ == "__main__":
    sys.exit(main())
