"""From a graph in Relax to the libraries in a bundle, compiled ahead of time."""

from __future__ import annotations

import shutil
from pathlib import Path

import tvm

from edgedec.export.weights_file import offsets_of
from edgedec.kernels.tvm_program import LISTING, OUTPUTS, RUNTIME_NAMES
from edgedec.models.errors import ConfigError
from edgedec.targets.tvm.export_emit import RelaxGraph
from edgedec.targets.tvm.export_node import listing

_LINKERS = ("c++", "g++", "clang++")


def build_library(graph: RelaxGraph, triple: str, path: Path) -> None:
    """Compiles ``graph`` for the processors of ``triple`` and writes the library ``path``.

    It holds the program, ``main``, the list of its nodes and the names of its outputs.

    Raises:
        ConfigError: There is no C++ compiler to link it with.
    """
    linker = next((name for name in _LINKERS if shutil.which(name)), None)
    if linker is None:
        raise ConfigError("the compiler tvm links with a C++ compiler: install g++ or clang")
    nodes = listing(graph.nodes, offsets_of(graph.weights))
    for name, text in ((LISTING, nodes), (OUTPUTS, ",".join(graph.outputs))):
        with graph.builder.function(name, []):
            graph.builder.emit_func_output(tvm.ir.StringImm(text))
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    executable = tvm.compile(graph.builder.finalize(), target)
    executable.export_library(str(path), cc=linker)


def copy_runtime(folder: Path) -> None:
    """Puts TVM's own libraries that run a program, 5 MB, into ``folder``.

    They are copied so that whoever runs the bundle needs no TVM, whose wheel has 300 MB.
    """
    for name in RUNTIME_NAMES:
        shutil.copyfile(Path(tvm.__file__).parent / "lib" / name, folder / name)


def dump_script(graph: RelaxGraph, path: Path) -> None:
    """Writes ``graph`` and the list of its nodes as text beside ``path``, for people."""
    nodes = listing(graph.nodes, offsets_of(graph.weights))
    path.with_suffix(".relax").write_text(graph.builder.get().script(), encoding="utf-8")
    path.with_suffix(".nodes").write_text(nodes + "\n", encoding="utf-8")
