"""Programs that TVM compiles compute what ONNX Runtime's fused graph computes, bit for bit."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.apps.cli import main
from edgedec.export.compilers import find_compiler
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import (
    BundleError,
    ConfigError,
    SessionError,
    UnsupportedModelError,
)
from edgedec.models.manifest import BundleManifest, read_manifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.backends import running_passes as running_passes
from edgedec.runtime.backends.trust import libraries, trust
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

pytest.importorskip("tvm", reason="needs the extra tvm")

GgufMaker = Callable[..., Path]
CONTEXT = 96
TREE = TokenTree((5, 9, 9, 70, 41, 3), (-1, 0, 0, 2, 2, 4))
QWEN3 = {"qwen3.attention.key_length": 64}


def exported(
    source: Path, folder: Path, compiler: str | None, **options: Any
) -> tuple[Path, BundleManifest]:
    """Returns a bundle whose code may be executed, and its manifest."""
    config = ExportConfig(
        str(source), folder, compiler=compiler, context=CONTEXT, hidden_layers=(0, 1), **options
    )
    manifest = export(config).manifest
    trust(libraries(folder, manifest))
    return folder, manifest


class Pair:
    """The same model twice: for ONNX Runtime, and compiled."""

    def __init__(self, source: Path, folder: Path, **options: Any) -> None:
        self.fused, _ = exported(source, folder / "fused", None, **options)
        self.tvm, self.manifest = exported(source, folder / "tvm", "tvm", **options)

    def sequences(self, threads: int = 2) -> Iterator[TokenSequence]:
        for folder in (self.fused, self.tvm):
            model = open_model(folder, read_manifest(folder).target, threads)
            yield TokenSequence(model, CONTEXT)
            release_model(model)


@pytest.fixture(scope="module", params=["llama", "qwen2", "int8"])
def pair(request: Any, make_gguf: GgufMaker, tmp_path_factory: Any) -> Pair:
    """A tiny model of each family, with and without minima; one with an int8 KV cache."""
    family = "llama" if request.param == "int8" else request.param
    source = make_gguf(family, "Q4_K" if family == "qwen2" else "Q8_0")
    options = {"kv_format": "int8"} if request.param == "int8" else {}
    return Pair(source, tmp_path_factory.mktemp(request.param), **options)


def bits(rows: Any) -> dict[str, bytes]:
    """Returns everything a pass gave, as bytes."""
    found = {f"hidden.{i}": array.tobytes() for i, array in rows.hidden.items()}
    found |= {name: array.tobytes() for name, array in vars(rows.stats).items()}
    return found | {"logits": rows.logits.tobytes()}


Script = Callable[[TokenSequence], list[dict[str, bytes]]]


def both(pair: Pair, script: Script, threads: int = 2) -> None:
    """Asserts that a script of passes gives the same bits with either."""
    fused, tvm = (script(sequence) for sequence in pair.sequences(threads))
    assert fused == tvm
    assert all(any(found["argmax"]) or any(found["log_sum_exp"]) for found in tvm)


def passes(sequence: TokenSequence) -> list[dict[str, bytes]]:
    """Returns the bits of a prompt, a tree that grows, steps behind it, and parts of layers."""
    found = []

    def run(tree: TokenTree, first: int = 0, **wanted: Any) -> Any:
        rows = sequence.run(Pass(sequence, tree, range(first, len(tree)), **wanted))
        found.append(bits(rows))
        return rows

    run(TokenTree.chain([1, 7, 7, 80, 2]), hidden_layers=(0, 1, 2))
    sequence.commit(range(5))
    run(TokenTree(TREE.tokens[:3], TREE.parents[:3]))
    run(TREE, n_known=3, first=3)
    sequence.commit([0, 2, 4])
    for token in (8, 9):
        run(TokenTree.chain([token]), hidden_layers=(2,))
        sequence.commit([0])
    run(TokenTree.chain([3, 4]), layer_gates=[True, False, True, True])
    run(TokenTree.chain([3, 4]), with_logits=False)
    chain = TokenTree.chain([3, 4, 5])
    entry = run(chain, layers=range(1), hidden_layers=(1,)).hidden[1].copy()
    sequence.commit(range(3))
    run(chain, layers=range(1, 2), entry=entry)
    return found


@pytest.mark.parity
@pytest.mark.parametrize("threads", [1, 2])
def test_every_kind_of_pass_gives_the_same_bits(pair: Pair, threads: int) -> None:
    both(pair, passes, threads)


@pytest.mark.parity
def test_weights_are_the_same_file(pair: Pair) -> None:
    files = [folder / "target" / "weights.bin" for folder in (pair.fused, pair.tvm)]
    assert len({hashlib.sha256(path.read_bytes()).hexdigest() for path in files}) == 1


@pytest.mark.parity
@pytest.mark.parametrize("method", ["plain", "lookup", "auto"])
def test_texts_are_the_same(pair: Pair, method: str) -> None:
    texts = []
    for folder in (pair.fused, pair.tvm):
        with edgedec.load(folder, edgedec.EngineOptions(threads=2)) as engine:
            config = edgedec.GenerationConfig(method=method, max_new_tokens=24, ignore_eos=True)
            texts.append(engine.generate("hello hello hell", config).token_ids)
    assert texts[0] == texts[1]


def test_what_an_int8_cache_costs_is_measured_alike(pair: Pair) -> None:
    fused, tvm = (read_manifest(folder).verification for folder in (pair.fused, pair.tvm))
    assert fused == tvm
    assert ("kv_cache" in tvm) == (pair.manifest.target.contract.kv.format == "int8")


def test_the_contract_is_the_fused_graphs(pair: Pair) -> None:
    fused, tvm = (read_manifest(folder).target.contract for folder in (pair.fused, pair.tvm))
    assert (tvm.compiler, tvm.backend, tvm.providers) == ("tvm", "tvm", ())
    assert (tvm.can, tvm.kv) == (fused.can, fused.kv)
    assert set(tvm.inputs) == set(fused.inputs)
    assert set(tvm.outputs) == set(fused.outputs)
    names = [path.name for path in libraries(pair.tvm, pair.manifest)]
    assert names == ["model.so", "libtvm_runtime.so", "libtvm_runtime_extra.so"]


def test_norms_of_heads_are_taken_in(make_gguf: GgufMaker, tmp_path: Path) -> None:
    weights = {
        f"blk.{i}.attn_{part}_norm.weight": np.linspace(0.5, 2, 64, dtype=np.float32)
        for i in range(2)
        for part in "qk"
    }
    source = make_gguf("qwen3", "Q8_0", weights=weights, metadata=QWEN3)
    both(Pair(source, tmp_path), passes)


def test_what_has_no_operator_is_refused(make_gguf: GgufMaker, tmp_path: Path) -> None:
    scaled = {"granite.embedding_scale": 2.0, "granite.logit_scale": 2.0,
              "granite.residual_scale": 1.0, "granite.attention.scale": 0.1}  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="scales activations, which the compiler tvm"):
        exported(make_gguf("granite", metadata=scaled), tmp_path / "b", "tvm")
    assert not (tmp_path / "b").exists()


def test_unknown_compilers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compiler is 'gcc', device target cpu has fused or tvm"):
        ExportConfig("x", tmp_path / "b", compiler="gcc")
    with pytest.raises(ConfigError, match="device target portable has portable"):
        ExportConfig("x", tmp_path / "b", device_target="portable", compiler="tvm")


@pytest.fixture(scope="module")
def compiled(make_gguf: GgufMaker, tmp_path_factory: Any) -> Path:
    """A compiled bundle, to be left as it is."""
    return exported(make_gguf("llama"), tmp_path_factory.mktemp("compiled") / "b", "tvm")[0]


@pytest.fixture
def bundle(compiled: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(compiled, tmp_path / "copy"))


def edit(bundle: Path, **stated: Any) -> None:
    """Writes other values into the contract, and the sizes and hashes that the files have."""
    path = bundle / "manifest.json"
    fields = json.loads(path.read_text())
    fields["models"]["target"]["contract"].update(stated)
    for name, entry in fields["files"].items():
        data = (bundle / name).read_bytes()
        entry.update(n_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    path.write_text(json.dumps(fields))


@pytest.mark.robustness
class TestHostileBundles:
    def test_code_of_others_is_refused_until_it_is_trusted(self, bundle: Path) -> None:
        library = bundle / "target" / "model.so"
        library.write_bytes(library.read_bytes() + b"\0")
        edit(bundle)
        with pytest.raises(BundleError, match="compiled code that you neither made nor trusted"):
            edgedec.load(bundle)
        trust(libraries(bundle, read_manifest(bundle)))
        edgedec.load(bundle).close()

    def test_so_is_a_runtime_of_others(self, bundle: Path) -> None:
        library = bundle / "target" / "libtvm_runtime.so"
        library.write_bytes(library.read_bytes() + b"\0")
        edit(bundle)
        with pytest.raises(BundleError, match=r"libtvm_runtime.so is compiled code that you"):
            edgedec.load(bundle)

    def test_libraries_outside_are_refused(self, bundle: Path, compiled: Path) -> None:
        library = bundle / "target" / "model.so"
        library.unlink()
        library.symlink_to(compiled / "target" / "model.so")
        with pytest.raises(BundleError, match="expected a file inside the bundle"):
            edgedec.load(bundle)

    def test_another_machine_is_named(self, bundle: Path) -> None:
        edit(bundle, triple="riscv64-linux-gnu")
        with pytest.raises(BundleError, match="was compiled for riscv64-linux-gnu, this machine"):
            edgedec.load(bundle)

    def test_a_library_that_is_none(self, bundle: Path) -> None:
        (bundle / "target" / "model.so").write_bytes(b"nothing")
        edit(bundle)
        trust([bundle / "target" / "model.so"])
        with pytest.raises(BundleError, match="cannot be opened"):
            edgedec.load(bundle)

    def test_weights_that_are_not_listed(self, bundle: Path) -> None:
        path = bundle / "manifest.json"
        fields = json.loads(path.read_text())
        fields["models"]["target"]["weights"] = ["tokenizer.json"]
        path.write_text(json.dumps(fields))
        with pytest.raises(
            BundleError, match=r"reads 'weights.bin', which manifest\.models\.target"
        ):
            edgedec.load(bundle)

    def test_weights_that_are_empty(self, bundle: Path) -> None:
        (bundle / "target" / "weights.bin").write_bytes(b"")
        edit(bundle)
        with pytest.raises(BundleError, match=r"model\.so cannot be opened"):
            edgedec.load(bundle)

    def test_weights_that_are_too_short(self, bundle: Path) -> None:
        weights = bundle / "target" / "weights.bin"
        weights.write_bytes(weights.read_bytes()[:8192])
        edit(bundle)
        with pytest.raises(BundleError, match="lies outside the 8192 bytes of weights"):
            edgedec.load(bundle)

    def test_ports_in_another_order(self, bundle: Path) -> None:
        contract = read_manifest(bundle).target.contract
        edit(bundle, inputs=contract.inputs[::-1])
        with pytest.raises(BundleError, match="has inputs"):
            edgedec.load(bundle)

    @pytest.mark.parametrize("backend", ["fused", "portable"])
    def test_another_backend(self, bundle: Path, backend: str) -> None:
        edit(bundle, backend=backend)
        with pytest.raises(BundleError, match=r"expected a file \*\.onnx for the backend"):
            edgedec.load(bundle)


def test_the_missing_package_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("edgedec.targets.tvm.run_tvm", "edgedec.kernels.tvm_program"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    with pytest.raises(BundleError, match="which needs tvm_ffi: pip install apache-tvm-ffi"):
        edgedec.load(bundle)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if "targets.tvm.export_" in n]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(ConfigError, match=r"needs tvm: pip install 'edgedec-runtime\[tvm\]'"):
        find_compiler("tvm")


def run(*arguments: object) -> int:
    """Returns the exit code of `edgedec` with these arguments."""
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


def test_commands(
    make_gguf: GgufMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    bundle = tmp_path / "b"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "mine"))
    assert run("export", make_gguf("llama"), "-o", bundle, "--compiler", "tvm") == 0
    generate = ("run", bundle, "hello", "--raw", "--max-new-tokens", 4)
    assert run(*generate) == 0
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "theirs"))
    assert run(*generate) == 1
    assert "compiled code that you neither made nor trusted" in capsys.readouterr().err
    assert run("inspect", bundle, "--trust-code") == 0
    assert "tvm, target/model.so" in capsys.readouterr().out
    assert run(*generate) == 0
    text = tmp_path / "text.txt"
    text.write_text("hello " * 100)
    assert run("train", "kv", bundle, "--corpus", text) == 1
    assert "which compiled bundles do not run: export the model" in capsys.readouterr().err


def test_a_pass_is_ended_from_another_thread(compiled: Path) -> None:
    model = open_model(compiled, read_manifest(compiled).target, 2)
    sequence = TokenSequence(model, CONTEXT)
    ended = threading.Event()

    def end() -> None:
        while not ended.is_set():
            running_passes.end_passes()

    thread = threading.Thread(target=end)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in range(10_000):
                sequence.forward(TREE, [0])
    finally:
        ended.set()
        thread.join()
    sequence.forward(TREE, [0])
    release_model(model)
    with pytest.raises(SessionError, match="the model is closed"):
        sequence.forward(TREE, [0])
