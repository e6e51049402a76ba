"""Files of session states: what comes back, what is refused, and what a killed writer leaves."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.models.errors import SessionError
from edgedec.runtime.sequences.session_file import (
    MAGIC,
    PAGE,
    Expected,
    SavedModel,
    read_states,
    write_states,
)
from edgedec.runtime.sequences.state import SessionState

TOKENS = (5, 6, 7, 8, 9)


def state(tokens: tuple[int, ...] = TOKENS, seed: int = 0) -> SessionState:
    rng = np.random.default_rng(seed)
    shape = (2, 3, len(tokens), 4)
    return SessionState(
        tokens,
        0,
        {
            "keys": rng.standard_normal(shape).astype(np.float16),
            "values": rng.integers(-128, 127, shape).astype(np.int8),
            "scales": rng.standard_normal(shape[:3]).astype(np.float32),
        },
    )


MODELS = {"target": SavedModel("aim", state()), "draft": SavedModel("sketch", state((1, 2), 1))}
WANTED = Expected("aim", 64, 10, 400, state().layout)
BOTH = {"target": WANTED, "draft": replace(WANTED, fingerprint="sketch", layout=None)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "text.session"
    write_states(path, MODELS)
    return path


def check_equal(got: SavedModel, wanted: SavedModel) -> None:
    assert got.fingerprint == wanted.fingerprint
    assert (got.state.tokens, got.state.start) == (wanted.state.tokens, 0)
    assert list(got.state.kv_rows) == list(wanted.state.kv_rows)
    for name, rows in wanted.state.kv_rows.items():
        assert got.state.kv_rows[name].dtype == rows.dtype
        np.testing.assert_array_equal(got.state.kv_rows[name], rows)


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Puts another header, with the right hash, in front of the rows of ``path``."""
    data = path.read_bytes()
    (n_header,) = struct.unpack_from("<I", data, 12)
    header = json.loads(data[48 : 48 + n_header])
    replaced = change(header)
    encoded = replaced if isinstance(replaced, bytes) else json.dumps(header).encode()
    digest = hashlib.sha256(encoded).digest()
    front = struct.pack("<8sII32s", MAGIC, 1, len(encoded), digest) + encoded
    rest = data[48 + n_header + (-(48 + n_header) % PAGE) :]
    path.write_bytes(front + bytes(-len(front) % PAGE) + rest)


def refused(path: Path, wanted: dict[str, Expected] | None = None) -> str:
    """Returns the message with which ``path`` is refused, which takes next to no memory."""
    tracemalloc.start()
    try:
        with pytest.raises(SessionError) as caught:
            read_states(path, BOTH if wanted is None else wanted)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    assert path.name in message
    return message


def test_states_come_back(path: Path) -> None:
    found = read_states(path, BOTH)
    assert list(found) == ["target", "draft"]
    for role, saved in found.items():
        check_equal(saved, MODELS[role])
    only = read_states(path, {"target": WANTED})
    assert list(only) == ["target"]
    check_equal(only["target"], MODELS["target"])


@pytest.mark.parametrize("tokens", [(), (3,), tuple(range(9)) * 300])
def test_any_length(tmp_path: Path, tokens: tuple[int, ...]) -> None:
    models = {"target": SavedModel("aim", state(tokens))}
    write_states(tmp_path / "s", models)
    wanted = {"target": replace(WANTED, context=3000)}
    check_equal(read_states(tmp_path / "s", wanted)["target"], models["target"])


def test_rows_start_at_pages_and_belong_to_their_owner(path: Path) -> None:
    data = path.read_bytes()
    assert len(data) % PAGE == 0
    keys = MODELS["target"].state.kv_rows["keys"].tobytes()
    assert data.index(keys) % PAGE == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.robustness
def test_every_bit_counts(path: Path) -> None:
    """Any flipped bit that is not refused would be a row, a token or a shape that lies."""
    data = bytearray(path.read_bytes())
    (n_header,) = struct.unpack_from("<I", data, 12)
    places = [*range(48 + n_header), *range(48 + n_header, len(data), 97), len(data) - 1]
    for place in places:
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        with pytest.raises(SessionError):
            read_states(path, BOTH)
        data[place] ^= 1 << place % 8
    path.write_bytes(data)
    read_states(path, BOTH)


@pytest.mark.robustness
@pytest.mark.parametrize("n_bytes", [0, 1, 47, 48, 100, PAGE, 3 * PAGE, -1])
def test_truncated(path: Path, n_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:n_bytes])
    assert "delete it" in refused(path)


@pytest.mark.robustness
def test_longer_than_stated(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")
    assert "bytes, expected" in refused(path)


@pytest.mark.robustness
def test_another_model_names_both(path: Path) -> None:
    other = {"target": replace(WANTED, fingerprint="other")}
    message = refused(path, other)
    assert "'aim'" in message
    assert "'other'" in message
    message = refused(path, {"target": WANTED, "draft": replace(WANTED, fingerprint="doodle")})
    assert "another draft model" in message
    assert "'sketch'" in message
    assert "'doodle'" in message


@pytest.mark.robustness
def test_another_context_vocabulary_or_kv_format(path: Path) -> None:
    assert "larger --context" in refused(path, {"target": replace(WANTED, context=4)})
    assert "holds token 9" in refused(path, {"target": replace(WANTED, vocab_size=9)})
    assert "more than 50 bytes" in refused(path, {"target": replace(WANTED, max_row_nbytes=10)})
    layout = {**state().layout, "keys": ("<f4", (2, 3, 4))}
    message = refused(path, {"target": replace(WANTED, layout=layout)})
    assert "has 'keys' as f2 rows of [2, 3, 4], the session's as f4 rows of [2, 3, 4]" in message


def set_in(*keys: str, to: object) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        for key in keys[:-1]:
            header = header[key]
        header[keys[-1]] = to

    return change


KEYS = ("models", "target", "kv_rows", "keys")
HUGE = 2**31 - 1


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: b"\xff\xfe", "not JSON"),
        (lambda header: b"[" * 200_000, "not JSON"),
        (lambda header: b'{"models": ' + b"9" * 5000 + b"}", "not JSON"),
        (lambda header: b"[]", "states the header as"),
        (lambda header: b"null", "states the header as"),
        (set_in("extra", to=1), "states the header as"),
        (set_in("payload_sha256", to=None), "SHA-256"),
        (set_in("payload_sha256", to="0" * 64), "SHA-256"),
        (set_in("models", to={}), "expected a target"),
        (set_in("models", to=[]), "expected a target"),
        (set_in("models", "spy", to={}), "expected a target among"),
        (set_in("models", "target", to=7), "states target as 7"),
        (set_in("models", "target", "fingerprint", to=["aim"]), "fingerprint"),
        (set_in("models", "target", "tokens", to="many"), "tokens 'many'"),
        (set_in("models", "target", "tokens", to=[1, 2, 3, 4, -5]), "expected token ids"),
        (set_in("models", "target", "tokens", to=[1, 2, 3, 4, True]), "expected token ids"),
        (set_in("models", "target", "tokens", to=[1, 2, 3, 4, 1e3]), "expected token ids"),
        (set_in("models", "target", "tokens", to=[1, 2, 3, 4, 2**70]), "expected token ids"),
        (set_in("models", "target", "tokens", to=[1, 2, 3, 4]), "expected 4 rows"),
        (set_in("models", "target", "kv_rows", to={}), "expected 1 to"),
        (set_in("models", "target", "kv_rows", to=[]), "expected 1 to"),
        (set_in(*KEYS, to={}), "states target array 'keys' as"),
        (set_in(*KEYS, "dtype", to="|O"), "expected one of <f2"),
        (set_in(*KEYS, "dtype", to=">f2"), "expected one of <f2"),
        (set_in(*KEYS, "dtype", to=["<f2"]), "expected one of <f2"),
        (set_in(*KEYS, "dtype", to="<f4"), "KV cache has"),
        (set_in(*KEYS, "shape", to=None), "expected 5 rows"),
        (set_in(*KEYS, "shape", to=[2, 3]), "expected 5 rows"),
        (set_in(*KEYS, "shape", to=[2, 3, 5.0, 4]), "expected 5 rows"),
        (set_in(*KEYS, "shape", to=[-2, 3, 5, -4]), "expected 5 rows"),
        (set_in(*KEYS, "shape", to=[2, 3, HUGE, 4]), "expected 5 rows"),
        (set_in(*KEYS, "shape", to=[HUGE, HUGE, 5, HUGE]), "KV cache has"),
        (set_in("models", "draft", "kv_rows", "keys", "shape", to=[HUGE, HUGE, 2, HUGE]), "bytes"),
    ],
)
def test_hostile_headers(path: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    rewrite(path, change)
    assert message in refused(path)


@pytest.mark.robustness
def test_header_size_is_bounded(path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 12, 2**32 - 1)
    path.write_bytes(data)
    assert "states a header of 4294967295 bytes" in refused(path)
    with path.open("r+b") as file:
        file.truncate(1 << 33)  # sparse
    assert "states a header of 4294967295 bytes" in refused(path)


@pytest.mark.robustness
def test_version_and_magic(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:8] + struct.pack("<I", 3) + data[12:])
    assert "version 3, this edgedec reads 1 and 2" in refused(path)
    path.write_bytes(b"GGUF" + data[4:])
    assert "begins with b'GGUF" in refused(path)


@given(st.binary(max_size=300))
@pytest.mark.robustness
def test_noise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.session"
    path.write_bytes(MAGIC + content)
    with pytest.raises(SessionError):
        read_states(path, BOTH)


@pytest.mark.robustness
def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    assert "No such file" in refused(tmp_path / "nothing")
    assert "not a regular file" in refused(tmp_path / "folder")
    assert "not a regular file" in refused(tmp_path / "fifo")
    with pytest.raises(SessionError, match="cannot write"):
        write_states(tmp_path / "nowhere" / "s", MODELS)
    with pytest.raises(SessionError, match="cannot write"):
        write_states(tmp_path / "folder", MODELS)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "fifo", tmp_path / "folder"]


@pytest.mark.robustness
def test_full_disk_leaves_the_older_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SessionError, match="No space left on device; free space"):
        write_states(path, {"target": SavedModel("aim", state((1,)))})
    monkeypatch.undo()
    check_equal(read_states(path, BOTH)["target"], MODELS["target"])
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.robustness
def test_a_file_that_has_its_name_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def fail_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    write_states(path, {"target": SavedModel("aim", state((1,)))})
    found = read_states(path, {"target": replace(WANTED, layout=None)})
    assert found["target"].state.tokens == (1,)


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from edgedec.runtime.sequences.session_file import SavedModel, write_states
from edgedec.runtime.sequences.state import SessionState
rows = {"keys": np.ones((2, 3, 2, 4), np.float16)}
if sys.argv[2] == "before the name":
    os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
else:
    real = os.fsync
    seen = []
    def fsync(descriptor):
        seen.append(descriptor)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        real(descriptor)
    os.fsync = fsync
write_states(Path(sys.argv[1]), {"target": SavedModel("aim", SessionState((1, 2), 0, rows))})
"""


@pytest.mark.robustness
@pytest.mark.parametrize("moment", ["before the name", "after the name"])
def test_killed_writer(path: Path, moment: str) -> None:
    """The file is the older one or the newer one, whole."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), moment], check=False)
    assert done.returncode == -signal.SIGKILL
    if moment == "before the name":
        check_equal(read_states(path, BOTH)["target"], MODELS["target"])
        write_states(path, MODELS)
    else:
        assert read_states(path, {"target": replace(WANTED, layout=None)})[
            "target"
        ].state.tokens == (1, 2)
