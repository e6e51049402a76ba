"""Exports, stores and session files whose writer is killed at a random moment.

    python tools/fuzz/kills.py --tries 1500 --seconds 500

A third of them each. Afterwards a bundle is whole or not there, and the next export removes what is
left; a store holds whole texts, the first of those that were added; a session is the new one or the
old one.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pieces import run_tries
from tiny import write_gguf

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.bundle_files import damaged_files
from edgedec.models.manifest import read_manifest
from edgedec.runtime.drafting.ngrams.ngram_file import describe
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
from edgedec.runtime.sequences.session_file import Expected, SavedModel, read_states, write_states
from edgedec.runtime.sequences.state import SessionState

HASH = "ab" * 32
N_LONGEST_S = {"export": 1.0, "store": 0.05, "session": 0.05}
"""Later the writers are done, as a rule."""


def killed(write: Callable[[], None], delay_s: float) -> None:
    """Runs ``write`` in a process that is killed after ``delay_s``."""
    child = os.fork()
    if child == 0:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        try:
            write()
        finally:
            os._exit(0)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def kill_export(folder: Path, rng: random.Random) -> None:
    """The bundle is whole or not there; the next export leaves nothing but its own."""
    source, bundle = write_gguf(folder / "tiny.gguf"), folder / "b.edgedec"
    config = ExportConfig(source=str(source), destination=bundle, is_overwrite_allowed=True)
    is_old = rng.random() < 0.5
    if is_old:
        export(config)
    killed(lambda: export(config), rng.uniform(0, N_LONGEST_S["export"]))
    assert bundle.exists() or not is_old
    if bundle.exists():
        check_bundle(bundle)
    export(config)
    check_bundle(bundle)
    assert {path.name for path in folder.iterdir()} == {"tiny.gguf", "b.edgedec"}


def check_bundle(bundle: Path) -> None:
    """Raises unless every file of a bundle is as its manifest says."""
    assert damaged_files(bundle, read_manifest(bundle).files) == []


def kill_store(folder: Path, rng: random.Random) -> None:
    """The texts that the store holds are whole, and the first of those that were added."""
    path, n_texts = folder / "texts.ngrams", 400
    texts = [[n, *range(1000, 1000 + rng.randint(1, 40))] for n in range(1, n_texts)]
    NgramStore.open(path, HASH, 1 << 20)

    def add() -> None:
        store = NgramStore.open(path, HASH)
        for text in texts:
            store.add(text)

    killed(add, rng.uniform(0, N_LONGEST_S["store"]))
    facts = describe(path)
    held = texts[: facts.n_texts]
    assert facts.n_tokens == sum(map(len, held))
    store = NgramStore.open(path, HASH)
    for text in held[-2:]:
        if len(text) > 2:
            assert store.query(text[:2], 16).following[0][: len(text) - 2] == text[2:18]
    store.add([5000, 5001, 5002])
    assert NgramStore.open(path, HASH).query([5000, 5001], 1).following == [[5002]]


def kill_session(folder: Path, rng: random.Random) -> None:
    """The session is the old one or the new one."""
    path, shape = folder / "s.session", (2, 2, 1500, 32)
    old, new = (
        SavedModel(
            "aim",
            SessionState(tuple([number] * 1500), 0, {"keys": np.full(shape, number, np.float16)}),
        )
        for number in (1, 2)
    )
    write_states(path, {"target": old})
    killed(lambda: write_states(path, {"target": new}), rng.uniform(0, N_LONGEST_S["session"]))
    expected = Expected("aim", 1500, 10, 4 * 32 * 4, old.state.layout)
    state = read_states(path, {"target": expected})["target"].state
    assert state.tokens[0] in (1, 2)
    assert set(state.tokens) == {state.tokens[0]}
    assert (state.kv_rows["keys"] == state.tokens[0]).all()


def kill_one(number: int) -> int:
    """Kills one writer, another kind and moment for each ``number``, and looks what is left."""
    rng = random.Random(number)
    kind = (kill_export, kill_store, kill_session)[number % 3]
    folder = Path(tempfile.mkdtemp(prefix=f"kill-{number}-"))
    kind(folder, rng)  # its folder stays to be looked at when this fails
    shutil.rmtree(folder)
    return 1


if __name__ == "__main__":
    sys.exit(run_tries(__doc__, "kills", 1500, kill_one))
