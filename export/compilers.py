"""Graph compilers: `targets/*/export_NAME.py`, found by name.

A compiler turns the recipe of a family into a graph and its weights, and states the graph's
contract. A device target names its compiler; the contract names the backend that runs the graph.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from edgedec.export.phases.model_export import Phases
from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.export.verifying.verify import GraphRunner
from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError, UnsupportedModelError
from edgedec.models.graph import GraphContract
from edgedec.models.installation import install_command
from edgedec.targets import device_module, find_graph_kind, graph_kinds

__all__ = ["GraphCompiler", "compiler_names", "find_compiler"]


class GraphCompiler(Protocol):
    """What a compiler module defines.

    PHASES: from the formats of a model's matrices to its files, in ``RecipeModel.folder``.
    GRAPH_NAME, WEIGHTS_NAMES: what those files are called, of the second as many as were written.
    """

    PHASES: Phases
    GRAPH_NAME: str
    WEIGHTS_NAMES: tuple[str, ...]

    def contract(self, model: RecipeModel) -> GraphContract:
        """Returns what the graph of ``model`` takes, gives and can do."""

    def open_graph(self, model: RecipeModel) -> GraphRunner:
        """Returns a way to run the written graph, for its verification."""

    def measure(self, model: RecipeModel) -> dict[str, Any]:
        """Returns what else the verification report shall say of the written graph.

        Raises:
            UnsupportedModelError: The graph does not do what it should.
        """


def check_recurrence(name: str, config: ModelConfig) -> None:
    """Raises an UnsupportedModelError where the compiler ``name`` has no such recurrent layers.

    A compiler that has some says which kinds as ``RECURRENCES``.
    """
    kind = config.recurrence.kind
    if kind != "none" and kind not in getattr(find_compiler(name), "RECURRENCES", ()):
        raise UnsupportedModelError(
            f"{config.family} has recurrent layers ({kind}), which the compiler {name} does not "
            "have: export with --target cpu or portable"
        )


def check_bidirectional(name: str, config: ModelConfig) -> None:
    """Raises an UnsupportedModelError where rows see later ones and ``name`` has no such graphs.

    A compiler that has some says so by ``BLOCKS``.
    """
    if config.is_bidirectional and not getattr(find_compiler(name), "BLOCKS", False):
        raise UnsupportedModelError(
            f"{config.family} is bidirectional, which the compiler {name} does not have: export "
            "with --target cpu or portable"
        )


def check_encoder(name: str, config: ModelConfig) -> None:
    """Raises an UnsupportedModelError where the compiler ``name`` makes no graphs of encoders.

    One that does says so as ``HAS_ENCODERS``.
    """
    if config.encoder is not None and not getattr(find_compiler(name), "HAS_ENCODERS", False):
        raise UnsupportedModelError(
            f"{config.family} has an encoder, and the compiler {name} makes no graph of one: "
            "export with --target cpu or portable"
        )


def compiler_names() -> tuple[str, ...]:
    """Returns the names of all compilers, sorted."""
    return graph_kinds()


def find_compiler(name: str) -> GraphCompiler:
    """Returns the compiler module called ``name``; an unknown name is a ConfigError.

    So is one whose extra is not installed.
    """
    if name not in compiler_names():
        raise ConfigError(f"unknown compiler {name!r}; known: {', '.join(compiler_names())}")
    try:
        return cast(GraphCompiler, device_module("export", name))
    except ImportError as error:
        kind = find_graph_kind(name)
        if error.name not in kind.imports:
            raise
        raise ConfigError(
            f"the compiler {name} needs {error.name}: {install_command(kind.extra)}"
        ) from None
