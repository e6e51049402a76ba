"""What the graphs of one compiler are, as data: what makes, runs and holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from edgedec.models.errors import BundleError
from edgedec.models.fields import shown
from edgedec.models.graph import ONNX_SUFFIX
from edgedec.models.model_entry import ModelEntry


@dataclass(frozen=True)
class System:
    """The one operating system that runs some graphs. name: Python's; text: for people."""

    name: str
    text: str


@dataclass(frozen=True)
class GraphKind:
    """The graphs that ``export_NAME.py`` writes and ``run_NAME.py`` runs.

    extra: of edgedec, that brings what ``imports`` names. packages: what running imports -> the
    package that has it, where no extra is needed for it. first_import: what running needs and takes
    long to import. libraries: suffixes of its files that are executed; none if it is no code.
    weights_file: file that a graph reads, seen from its folder; empty for ONNX graphs, which name
    theirs. system: None if any runs it. brings_kernels: bundles may bring edgedec's kernels for
    another machine. measures_activations: a text to calibrate on is of use without quantisation.
    """

    extra: str = ""
    imports: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=lambda: {"onnxruntime": "onnxruntime"})
    first_import: str = "onnxruntime"
    libraries: tuple[str, ...] = ()
    weights_file: str = ""
    system: System | None = None
    brings_kernels: bool = False
    measures_activations: bool = False

    @property
    def is_code(self) -> bool:
        """Whether running a graph executes what its files hold."""
        return bool(self.libraries)

    def check_weights(self, entry: ModelEntry) -> None:
        """Raises a BundleError unless the manifest lists the file that the graph reads.

        ONNX graphs say themselves what they read, which was checked by their suffix.
        """
        if not self.weights_file and not entry.graph.endswith(ONNX_SUFFIX):
            raise BundleError(
                f"manifest: models.{entry.kind}.graph is {shown(entry.graph)}, expected a file "
                f"*{ONNX_SUFFIX} for the backend {entry.contract.backend}: export the model again"
            )
        read = PurePosixPath(entry.graph).parent / self.weights_file
        if self.weights_file and read.as_posix() not in entry.weights:
            raise BundleError(
                f"{entry.graph} reads {shown(self.weights_file)}, which manifest.models."
                f"{entry.kind}.weights does not list: export the model again"
            )
