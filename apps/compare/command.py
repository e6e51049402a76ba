"""`edgedec compare`: result files side by side."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.apps.compare.columns import ResultFile
from edgedec.apps.compare.comparison import make_comparison
from edgedec.apps.compare.history import last_before
from edgedec.apps.compare.tables import write_markdown, write_table
from edgedec.apps.console.option import option
from edgedec.apps.console.terminal import note, write_out
from edgedec.apps.measuring.plotters import find_plotter
from edgedec.apps.options import common as options
from edgedec.apps.results.result import read_result
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.models.installation import install_command


class CompareOutput(StrEnum):
    """How a comparison is written."""

    MD = "md"
    HTML = "html"
    JSON = "json"
    CSV = "csv"


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Result files of `bench --save` or `eval --save`."),
    ],
    base: Annotated[int, option("N", "Column that the others are compared with.", min=1)] = 1,
    against_last: Annotated[
        Path | None,
        option("FOLDER", "Compare FILE with the newest earlier result of the same kind in FOLDER."),
    ] = None,
    band: Annotated[
        str | None,
        option("LOW[,HIGH]", "Exit with 1 if a ratio is below LOW or above HIGH, e.g. 0.95."),
    ] = None,
    output: Annotated[
        CompareOutput, typer.Option("--output", "-o", help="Output format.")
    ] = CompareOutput.MD,
    plot: Annotated[Path | None, option("FILE.png", "Draw the comparison (extra `plots`).")] = None,
    allow_noise: Annotated[
        bool, typer.Option("--allow-noise", help="Compare noisy results as well.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Compare results of devices, builds, bundles and runtimes.

    Each device, build, bundle and runtime is a column. Files that agree in all of these are runs of
    one column. A ratio above 1 means better than the base column. It has a 95 % interval if both
    sides were measured in one run, or in three runs each.

    Examples:

      edgedec compare pi5.json orin.json

      edgedec compare results/*.json -o html > results.html

      edgedec compare results/*.json --plot results.png

      edgedec compare new.json --against-last results/ --band 0.95
    """
    draw = find_plotter("compare.plot", plot)
    bounds = None if band is None else parse_band(band)
    sources = [ResultFile(path, read_result(path)) for path in dict.fromkeys(files)]
    if against_last is not None:
        if len(sources) != 1:
            raise ConfigError(f"--against-last compares one file, got {len(sources)}")
        sources.insert(0, last_before(sources[0], against_last))
    document = make_comparison(sources, base - 1, allow_noise, against_last is None)
    write_out(_written(document, output))
    if draw is not None and plot is not None:
        draw(document, plot)
        note(f"drew {plot}")
    if bounds is not None and (left := out_of_band(document, *bounds)):
        raise EdgedecError(left)


def _written(document: dict[str, Any], output: CompareOutput) -> str:
    match output:
        case CompareOutput.HTML:
            try:
                from edgedec.apps.compare.page import write_page
            except ImportError as error:
                raise ConfigError(
                    f"-o html needs Plotly ({error}): {install_command('compare')}"
                ) from None
            return write_page(document)
        case CompareOutput.JSON:
            return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        case CompareOutput.CSV:
            return write_table(document)
        case _:
            return write_markdown(document)


def parse_band(text: str) -> tuple[float, float]:
    """Returns the bounds that ``LOW`` or ``LOW,HIGH`` names."""
    low, _, high = text.partition(",")
    try:
        bounds = float(low), float(high or "inf")
    except ValueError:
        bounds = (0.0, 0.0)
    if not 0 < bounds[0] <= bounds[1]:
        raise typer.BadParameter(f"got {text!r}, expected 0.95 or 0.95,1.2", param_hint="--band")
    return bounds


def out_of_band(document: dict[str, Any], low: float, high: float) -> str | None:
    """Returns which ratios are out of a band, in one line; None if none is."""
    outside = [
        f"{row['name']} of {column['name']} {cell['ratio']['value']:.3f}"
        for row in document["rows"]
        for column, cell in zip(document["columns"], row["cells"], strict=True)
        if cell is not None
        and cell["ratio"] is not None
        and not cell["ratio"]["is_difference"]
        and not low <= cell["ratio"]["value"] <= high
    ]
    if not outside:
        return None
    more = f" (and {len(outside) - 1} more)" if len(outside) > 1 else ""
    return f"out of the band {low:g} to {high:g}: {outside[0]}{more}"
