"""The table of layers' inputs stays in its file; texts of models with shared keys share passes."""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgedec import EngineOptions, GenerationConfig, load
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.kernels.library import has_library
from edgedec.models.layer_inputs import LAYER_TABLE
from tests.models.test_gemma3n import TestParity as Gemma3n
from tests.models.test_gemma4 import TestParity as Gemma4

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not has_library(), reason="the kernel library is not built"),
]

N_TOKENS = 40_000
TABLE_NBYTES = N_TOKENS * 8 * 32 * 4
MARGIN = 3_600 * mmap.PAGESIZE
"""Bytes at both ends of the table that reading its neighbours may bring along."""


def of_process(name: str) -> int:
    """Returns what ``/proc/self/status`` counts under ``name``, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def table_place(graph: Path) -> tuple[int, int]:
    """Returns where the table lies in the file of weights, and its bytes."""
    model = onnx.load(graph, load_external_data=False)
    (table,) = (t for t in model.graph.initializer if t.name == LAYER_TABLE)
    entries = {entry.key: entry.value for entry in table.external_data}
    return int(entries["offset"]), int(entries["length"])


def n_cached(path: Path, offset: int, n_bytes: int) -> int:
    """Returns how many of the bytes the system has in memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        address = np.frombuffer(pages, np.uint8).ctypes.data + offset
        found = np.zeros(-(-n_bytes // mmap.PAGESIZE), np.uint8)
        size = ctypes.c_size_t(n_bytes)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(address), size, ctypes.c_void_p(found.ctypes.data)) == 0
        return int((found & 1).sum()) * mmap.PAGESIZE


def forget(path: Path) -> None:
    """Has the system forget what it has of a file, so that what is read comes from the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model most of which is the table, in floats."""
    sizes = {**Gemma3n.SIZES, "vocab_size": N_TOKENS}
    large = type("Large", (Gemma3n,), {"SIZES": sizes, "N_LAYER_INPUTS": N_TOKENS})
    toy = large.draw(tmp_path_factory.mktemp("toy"))
    path = tmp_path_factory.mktemp("large") / "b"
    export(ExportConfig(str(toy.folder), path))
    gc.collect()
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_table_is_read_by_rows(bundle: Path) -> None:
    entry = json.loads((bundle / "manifest.json").read_text())["models"]["target"]
    weights, place = bundle / entry["weights"][0], table_place(bundle / entry["graph"])
    assert place[1] >= TABLE_NBYTES
    forget(weights)
    if n_cached(weights, *place):
        pytest.skip("the file system keeps files in memory")
    before = of_process("RssAnon")
    with load(bundle, EngineOptions(threads=2)) as engine:
        # `auto` would measure passes over tokens from all over the table.
        config = GenerationConfig(max_new_tokens=20, ignore_eos=True, method="plain")
        tokens = {0, 2, *engine.generate("!#!#!#", config).token_ids}
        assert of_process("RssAnon") - before < TABLE_NBYTES // 2
        # Two pages, where a row crosses their border. What lies beside the table is read ahead.
        offset, n_bytes = place[0] + MARGIN, place[1] - 2 * MARGIN
        assert n_cached(weights, offset, n_bytes) <= 2 * len(tokens) * mmap.PAGESIZE


@pytest.mark.parametrize("kv_format", ["float16", "int8"])
@pytest.mark.parametrize("family", [Gemma3n, Gemma4])
def test_texts_that_share_passes(family: Any, kv_format: str, tmp_path: Path) -> None:
    """Rings and whole caches have heads of two sizes, and some layers have neither."""
    longer = type("Longer", (family,), {"SIZES": {**family.SIZES, "max_position_embeddings": 256}})
    (tmp_path / "toy").mkdir()
    toy = longer.draw(tmp_path / "toy")
    wanted = ExportConfig(str(toy.folder), tmp_path / "b", quantization="int8", kv_format=kv_format)
    export(wanted)
    with load(tmp_path / "b", EngineOptions(threads=2)) as engine:
        config = GenerationConfig(max_new_tokens=60, method="plain", ignore_eos=True)
        prompts = ["ABCABC", "!#!#!#!", "QRSTUQRS"]
        alone = [engine.generate(prompt, config).token_ids for prompt in prompts]
        with ThreadPoolExecutor(3) as pool:
            together = list(pool.map(lambda p: engine.generate(p, config).token_ids, prompts))
    assert together == alone
