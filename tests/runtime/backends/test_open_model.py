"""Models that those who open one bundle share, and what that saves."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_models import contract_of

import edgedec
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.errors import BundleError, SessionError
from edgedec.models.families import weight_shapes
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets.portable.run_portable import PortableModel

CONTEXT = 64
TEXT = TokenTree.chain([3, 80, 7, 7, 41])


def write_model(source: Any, folder: Path, is_fused: bool = True) -> ModelEntry:
    """Writes a graph with its weights and returns what a manifest would state of it."""
    graph = emit_portable(source.config, ())
    if is_fused:
        shapes = weight_shapes(source.config)
        formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
        graph = fuse(graph, source.config, formats)
    folder.mkdir(exist_ok=True)
    write_weights(graph, source, folder)
    save_model(graph, folder / "model.onnx")
    weights = tuple(path.name for path in folder.iterdir() if path.name != "model.onnx")
    contract = contract_of(folder / "model.onnx", source.config)
    return ModelEntry("target", "model.onnx", weights, contract, source.config, CONTEXT, {})


@pytest.fixture(params=["fused", "portable"])
def bundle(
    request: pytest.FixtureRequest, make_source: Any, tmp_path: Path
) -> Iterator[tuple[Path, ModelEntry]]:
    """A folder with a tiny model and its entry; whatever a test leaves open is its own fault."""
    if request.param == "fused" and not library.has_library():
        pytest.skip("the kernel library is not built")
    return tmp_path / "b", write_model(make_source(), tmp_path / "b", request.param == "fused")


def logits(model: Any) -> np.ndarray[Any, Any]:
    return TokenSequence(model, CONTEXT).forward(TEXT, range(len(TEXT))).logits.copy()


def test_shared_until_the_last_releases_it(bundle: tuple[Path, ModelEntry]) -> None:
    folder, entry = bundle
    first, second = open_model(folder, entry, 1), open_model(folder, entry, 1)
    assert first is second
    release_model(first)
    assert not second.is_closed
    expected = logits(second)
    release_model(second)
    assert second.is_closed
    with pytest.raises(SessionError, match="the model is closed: load the bundle again"):
        logits(second)
    third = open_model(folder, entry, 1)
    assert third is not first
    np.testing.assert_array_equal(logits(third), expected)
    release_model(third)


def flags_of_mapped(path: Path) -> list[set[str]]:
    """Returns the flags of each place where this process has mapped the file ``path``."""
    found: list[set[str]] = []
    is_ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            is_ours = line.endswith(f" {path}")
        elif is_ours and line.startswith("VmFlags:"):
            found.append(set(line.split()[1:]))
    return found


@pytest.mark.skipif(not library.has_library(), reason="the kernel library is not built")
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here"
)
def test_matrices_are_read_into_huge_pages(make_source: Any, tmp_path: Path) -> None:
    source = make_source(hidden_size=128, head_size=32, intermediate_size=256)
    entry = write_model(source, tmp_path)
    model = open_model(tmp_path, entry, 1)
    flags = flags_of_mapped(tmp_path.resolve() / "weights.bin")
    release_model(model)
    n_products = 4 * source.config.n_layers + 1  # q, k and v are three matrices of one
    assert n_products <= sum("hg" in of for of in flags) < len(flags)  # not vectors


def test_another_for_other_threads(bundle: tuple[Path, ModelEntry]) -> None:
    folder, entry = bundle
    one, two = open_model(folder, entry, 1), open_model(folder, entry, 2)
    assert one is not two
    np.testing.assert_array_equal(logits(one), logits(two))
    release_model(one)
    assert (one.is_closed, two.is_closed) == (True, False)
    release_model(two)


def test_the_folder_may_be_named_in_another_way(
    bundle: tuple[Path, ModelEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, entry = bundle
    monkeypatch.chdir(folder)
    models = [open_model(path, entry, 1) for path in (folder, Path(), Path("../b"))]
    assert len({id(model) for model in models}) == 1
    for model in models:
        release_model(model)
    assert models[0].is_closed


def test_anew_when_the_bundle_was_replaced(
    bundle: tuple[Path, ModelEntry], make_source: Any, tmp_path: Path
) -> None:
    folder, entry = bundle
    old = open_model(folder, entry, 1)
    before = logits(old)
    folder.rename(tmp_path / "old")
    write_model(make_source(seed=1), folder, entry.contract.backend == "fused")
    new = open_model(folder, entry, 1)
    assert new is not old
    assert np.abs(logits(new) - before).max() > 0.1
    np.testing.assert_array_equal(logits(old), before)
    release_model(old)
    assert (old.is_closed, new.is_closed) == (True, False)
    release_model(new)


def test_opened_at_once_by_many(bundle: tuple[Path, ModelEntry]) -> None:
    folder, entry = bundle
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: open_model(folder, entry, 1), range(8)))
    assert len({id(model) for model in models}) == 1
    for model in models:
        assert not model.is_closed
        release_model(model)
    assert models[0].is_closed


def test_what_was_refused_is_not_kept(bundle: tuple[Path, ModelEntry]) -> None:
    folder, entry = bundle
    graph = (folder / "model.onnx").read_bytes()
    status = (folder / "model.onnx").stat()
    (folder / "model.onnx").write_bytes(bytes(len(graph)))
    with pytest.raises(BundleError, match="ONNX Runtime refuses"):
        open_model(folder, entry, 1)
    (folder / "model.onnx").write_bytes(graph)
    os.utime(folder / "model.onnx", ns=(status.st_atime_ns, status.st_mtime_ns))
    model = open_model(folder, entry, 1)
    logits(model)
    release_model(model)
    shutil.rmtree(folder)
    with pytest.raises(BundleError, match=r"^cannot read .*model.onnx: No such file[^\n]*$"):
        open_model(folder, entry, 1)


def test_a_model_of_ones_own_is_closed(bundle: tuple[Path, ModelEntry]) -> None:
    folder, entry = bundle
    if entry.contract.backend == "fused":
        pytest.skip("one kind is enough")
    model = PortableModel(GraphToRun(folder / entry.graph, entry.config, entry.contract, 1))
    release_model(model)
    assert model.is_closed


RESIDENT = """
import os, pickle, sys
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

import edgedec.targets.cpu.run_fused, edgedec.targets.portable.run_portable
from edgedec.runtime.backends import open_model
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

folder = Path(sys.argv[1])
entry = pickle.loads((folder / "entry").read_bytes())
sizes, kept = [resident()], []
for threads in (1, 1, 2):
    sequence = TokenSequence(open_model(folder, entry, threads), entry.context)
    sequence.forward(TokenTree.chain(range(32)), range(32))
    kept.append(sequence)
    sizes.append(resident())
print(*sizes)
"""

ENGINES = """
import os, sys
from pathlib import Path
import edgedec

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

request = edgedec.GenerationConfig(max_new_tokens=8, ignore_eos=True, method="plain")
sizes, kept = [resident()], []
for threads in (1, 1, 2):
    kept.append(edgedec.load(sys.argv[1], edgedec.EngineOptions(threads=threads)))
    kept[-1].generate("The lighthouse keeper had never spoken of it", request)
    sizes.append(resident())
print(*sizes)
"""


FORKED = """
import os, pickle, sys
from pathlib import Path

import numpy as np

from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

folder, way = Path(sys.argv[1]), sys.argv[2]
entry = pickle.loads((folder / "entry").read_bytes())

def logits(model):
    return TokenSequence(model, entry.context).forward(TokenTree.chain(range(8)), range(8)).logits

model = open_model(folder, entry, threads=2)
before = logits(model).copy()
if os.fork() == 0:
    again = open_model(folder, entry, threads=2) if way == "opens" else model
    assert (again is model) == (way != "opens")
    np.testing.assert_array_equal(logits(again), before)
    if way != "ends":
        release_model(again)
    print("its end")
    sys.exit()
_, status = os.wait()
np.testing.assert_array_equal(logits(model), before)
release_model(model)
assert model.is_closed
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ends", "closes", "opens"])
def test_a_forked_process_computes_and_ends(bundle: tuple[Path, ModelEntry], way: str) -> None:
    folder, entry = bundle
    (folder / "entry").write_bytes(pickle.dumps(entry))
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(folder), way], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "its end\n", "")


def growth(script: str, folder: Path) -> list[int]:
    """Returns the bytes of memory that a first, a second, and an unshared third one take."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc here to read resident memory from")
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], check=True, capture_output=True, text=True
    )
    sizes = [int(word) for word in done.stdout.split()]
    return [after - before for before, after in itertools.pairwise(sizes)]


def test_a_second_one_takes_little_memory(make_source: Any, tmp_path: Path) -> None:
    if not library.has_library():
        pytest.skip("the kernel library is not built")
    source = make_source(vocab_size=16000, hidden_size=256, intermediate_size=512)
    entry = write_model(source, tmp_path / "b")
    (tmp_path / "b" / "entry").write_bytes(pickle.dumps(dataclasses.replace(entry)))
    n_bytes = sum((tmp_path / "b" / name).stat().st_size for name in entry.files)
    first, second, unshared = growth(RESIDENT, tmp_path / "b")
    assert n_bytes > 30e6
    assert first > n_bytes / 2
    assert second < n_bytes / 10
    assert unshared > n_bytes / 3


@pytest.mark.e2e
def test_engines_share_their_model(smollm2_bundle: Path) -> None:
    request = edgedec.GenerationConfig(max_new_tokens=4, ignore_eos=True)
    options = edgedec.EngineOptions(threads=1)
    first, second = (edgedec.load(smollm2_bundle, options) for _ in range(2))
    model = first.model
    assert second.model is model
    text = first.generate("Once upon a time", request).text
    first.close()
    assert second.generate("Once upon a time", request).text == text
    second.close()
    assert model.is_closed


@pytest.mark.e2e
def test_a_second_engine_takes_little_memory(smollm2_bundle: Path) -> None:
    first, second, _ = growth(ENGINES, smollm2_bundle)
    assert second < first / 4
