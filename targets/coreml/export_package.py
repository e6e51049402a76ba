"""A program as an ``.mlpackage``: its specification, and the weights that all functions share."""

from __future__ import annotations

import tempfile
from pathlib import Path

import coremltools as ct
from coremltools.converters.mil.backend.mil import load as to_specification
from coremltools.converters.mil.frontend.milproto import load as from_specification
from coremltools.converters.mil.mil import Program

from edgedec.targets.coreml.export_emit import OPSET

PACKAGE = "model.mlpackage"
_DATA = f"{PACKAGE}/Data/com.apple.CoreML"
SPECIFICATION = f"{_DATA}/model.mlmodel"
WEIGHTS = f"{_DATA}/weights/weight.bin"
ITEMS = f"{PACKAGE}/Manifest.json"


def write_package(program: Program, folder: Path) -> None:
    """Writes ``program`` into ``folder`` as `PACKAGE`."""
    program.validate(check_essential_scope=True)
    with tempfile.TemporaryDirectory(dir=folder) as weights:
        spec = to_specification.load(program, weights, specification_version=OPSET.value)
        ct.utils.save_spec(spec, str(folder / PACKAGE), weights_dir=weights)


def read_package(folder: Path) -> Program:
    """Returns the program of `PACKAGE` in ``folder``.

    Each operator is built anew, so that its definition checks types and shapes of what it is given,
    and what it returns is compared with what the specification states.
    """
    spec = ct.utils.load_spec(str(folder / PACKAGE))
    weights = (folder / WEIGHTS).parent
    return from_specification.load(spec, spec.specificationVersion, str(weights))
