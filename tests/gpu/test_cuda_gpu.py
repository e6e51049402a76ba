"""SmolLM2 on an NVIDIA GPU: texts against float32, and what of its bandwidth decoding uses."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from float32_reference import PROMPTS, load_reference, reference_logits

import edgedec
from edgedec import Engine, EngineOptions, GenerationConfig
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.kernels import cuda_driver
from edgedec.models.graph import WEIGHTS_BESIDE
from edgedec.models.manifest import read_manifest
from edgedec.runtime.backends.trust import libraries, trust
from edgedec.runtime.sequences.token_tree import TokenTree

pytestmark = pytest.mark.gpu

METHODS = ("plain", "auto", "lookup", "recycling", "trigram", "draft")
MAX_GAP = 0.25
"""Logits by which float32 may prefer another token: scales and the KV cache are float16."""

BANDWIDTH = {
    "A100": 1555e9, "RTX 3090": 936e9, "Orin": 204.8e9, "RTX 4090": 1008e9, "H100": 3350e9,
    "H200": 4800e9,
}  # fmt: skip
"""Part of a GPU's name -> bytes a second that it reads, as its maker states."""


def gpu_or_skip() -> cuda_driver.GpuFacts:
    try:
        gpus = cuda_driver.find_gpus()
    except cuda_driver.CudaError as error:
        pytest.skip(str(error))
    if not gpus:
        pytest.skip("the driver finds no GPU")
    return gpus[0]


@pytest.fixture(scope="module")
def bundle(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arch = gpu_or_skip().arch
    if made_elsewhere := os.environ.get("EDGEDEC_GPU_BUNDLE"):
        found = Path(made_elsewhere)
        trust(libraries(found, read_manifest(found)))
        return found
    pytest.importorskip("tvm", reason="needs the extra tvm, or a bundle in EDGEDEC_GPU_BUNDLE")
    if shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("needs nvcc of NVIDIA's CUDA toolkit")
    path = tmp_path_factory.mktemp("gpu") / "b"
    config = ExportConfig(str(smollm2_gguf), path, device_target="cuda", arch=arch, context=1024)
    done = export(config)
    trust(libraries(done.bundle, done.manifest))
    return path


@pytest.fixture(scope="module")
def engine(bundle: Path) -> Iterator[Engine]:
    with edgedec.load(bundle, EngineOptions(draft=bundle)) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference(smollm2_gguf: Path) -> Any:
    gpu_or_skip()
    return load_reference(smollm2_gguf)


@pytest.mark.parametrize("method", METHODS)
def test_texts_are_those_of_float32(reference: Any, engine: Engine, method: str) -> None:
    config = GenerationConfig(max_new_tokens=48, method=method, ignore_eos=True)
    for prompt in PROMPTS[:4]:
        answer = engine.generate(prompt, config).token_ids
        tokens = engine.tokenizer.encode(prompt)
        rows = reference_logits(reference, [*tokens, *answer[:-1]])[len(tokens) - 1 :]
        gaps = rows.max(axis=1) - rows[np.arange(len(answer)), list(answer)]
        assert gaps.max() < MAX_GAP


def test_logits_do_not_depend_on_the_rows_of_a_pass(engine: Engine) -> None:
    sequence, found = engine.new_sequence(), []
    sequence.forward(TokenTree.chain(range(100, 164)), [63])
    sequence.commit(range(64))
    for n_rows in (1, 4, 8, 16):
        rows = sequence.forward(TokenTree.chain(range(200, 200 + n_rows)), [0])
        found.append(rows.logits[0].copy())
    for logits in found[1:]:
        np.testing.assert_array_equal(logits, found[0])


def test_decoding_and_verifying_are_timed(bundle: Path, engine: Engine) -> None:
    """Prints milliseconds of passes, and the share of the memory's bandwidth; asserts no time."""
    gpu, sequence = gpu_or_skip(), engine.new_sequence()
    sequence.forward(TokenTree.chain(range(100, 164)), [63])
    sequence.commit(range(64))
    found = {}
    for n_rows in (1, 4, 8, 16):
        tree, times = TokenTree.chain(range(200, 200 + n_rows)), []
        for _ in range(30):
            begin = time.perf_counter()
            sequence.forward(tree, range(n_rows), with_logits=False)
            times.append(time.perf_counter() - begin)
        found[n_rows] = statistics.median(times[5:])
    rate = (bundle / "target" / WEIGHTS_BESIDE).stat().st_size / found[1]
    stated = next((rate for name, rate in BANDWIDTH.items() if name in gpu.name), None)
    share = f"{rate / stated:.0%}" if stated else "an unknown share"
    print(f"\n{gpu.name}: " + ", ".join(f"{n} rows {1e3 * t:.2f} ms" for n, t in found.items()))
    print(f"weights read at {rate / 1e9:.0f} GB/s, {share} of what such GPUs are stated to read")
