"""Working memory that cannot be had becomes an error, also when another thread asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PREPARE = """
import resource
import sys
from pathlib import Path
sys.path.insert(0, DOORS)
import attention_op
import numpy as np

ROWS, PAST, SIZE = 128, 4_000_000, 16  # a task wants some 40 MB
CAPACITY = PAST + ROWS
qkv = np.zeros((ROWS, 3 * SIZE), np.float32)
positions, parents = np.zeros(ROWS, np.int64), np.arange(ROWS, dtype=np.int64) - 1
rope = np.ones((1, SIZE // 2), np.float32), np.zeros((1, SIZE // 2), np.float32)
keys = np.zeros((1, CAPACITY // 16, SIZE, 16), np.float16)
values = np.zeros((1, CAPACITY, SIZE), np.float16)

def starve():
    # Enough for the stacks of threads.
    n_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes + 20_000_000, resource.RLIM_INFINITY))
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        raise SystemExit(77)  # such as under emulation, which takes a limit and forgets it

def feed():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""

DOOR = """
def attend(past):
    attention_op.attention(qkv, positions, parents, past, rope, (keys, values), n_threads=3)

attend(0)
starve()
try:
    attend(PAST)
except MemoryError as error:
    feed()
    print(error)
attend(0)
"""

OPERATOR = """
import sys
sys.path.insert(0, FOLDER)
from op_node import open_node

def sequence(past):
    return np.array([[past, len(qkv), len(parents), 0, values.shape[1] // 16]])

feeds = {
    "qkv": qkv[None], "position_ids": positions[None], "parents": parents[None],
    "sequences": sequence(0), "k_cache": keys[None], "v_cache": values[None],
}
names = ["qkv", "position_ids", "parents", "sequences", "cos", "sin", "k_cache", "v_cache"]
attributes = {"layer": 0, "n_heads": 1, "n_kv_heads": 1, "head_size": SIZE}
session = open_node("Attention", names, feeds, dict(zip(("cos", "sin"), rope)), attributes, 3)
session.run(None, feeds)
starve()
try:
    session.run(None, feeds | {"sequences": sequence(PAST)})
except Exception as error:
    feed()
    print(error)
session.run(None, feeds)
"""

needs_limits = pytest.mark.skipif(
    sys.platform != "linux" or "ASAN_OPTIONS" in os.environ,
    reason="needs an address space that can be limited",
)


@needs_limits
@pytest.mark.robustness
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (DOOR, "attention found no working memory"),
        (f"FOLDER = {str(Path(__file__).parent)!r}\n{OPERATOR}", "edgedec.Attention: "),
    ],
    ids=["door", "operator"],
)
def test_tasks_without_memory(program: str, message: str) -> None:
    program = f"DOORS = {str(Path(__file__).parents[1] / 'doors')!r}\n{PREPARE}{program}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("the address space cannot be limited here")
    assert done.returncode == 0, done.stderr[-2000:]
    assert message in done.stdout
