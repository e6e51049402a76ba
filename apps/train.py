"""`edgedec train`: fits what makes a bundle's models quicker, and puts it into the bundle."""

from __future__ import annotations

import dataclasses
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from edgedec.apps import options
from edgedec.apps.progress import ProgressBars, count_amount
from edgedec.apps.terminal import print_json, stops_on_interrupt, write_out
from edgedec.models.errors import ConfigError
from edgedec.models.graph import CODE_BACKENDS, K_CACHE
from edgedec.models.manifest import BundleManifest, read_manifest

_HELP = """Fit what makes a bundle's models quicker, and put it into the bundle.

Example:

  edgedec train kv smollm2.edgedec --corpus src
"""

train = typer.Typer(help=_HELP, no_args_is_help=True)


@train.callback()
def _verbs() -> None:
    """Makes `kv` a verb of its own, though it is the only one."""


@train.command()
def kv(
    bundle: options.Bundle,
    corpus: Annotated[
        list[Path],
        typer.Option(metavar="PATH", help="A text file, or a folder of them; may be repeated."),
    ],
    exit_layer: Annotated[
        int | None,
        typer.Option(
            "--exit", metavar="E", min=1, help="Layers that are computed; half of them by default."
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most tokens that are read.")
    ] = 100_000,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads; one per core by default.")
    ] = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Fit maps that predict keys and values of later layers from the first ones.

    With them a long prompt is answered before it is read to the end (`run --prefill progressive`).
    Texts like those of later prompts serve best. Maps of an earlier run are replaced. Ctrl-C
    ends the reading, and fits what was read (exit code 130). The same command goes on where one
    that was killed ended.

    Examples:

      edgedec train kv smollm2.edgedec --corpus src

      edgedec train kv smollm2.edgedec --corpus src --corpus docs --exit 20 --max-tokens 50000
    """
    from edgedec.apps.training.kv import corpus_windows, fit
    from edgedec.apps.training.kv_entry import write_maps
    from edgedec.apps.training.kv_progress import FitFile
    from edgedec.runtime.opening.load import load
    from edgedec.runtime.opening.options import EngineOptions
    from edgedec.runtime.sessions.memory import fingerprint_of

    manifest = read_manifest(bundle)
    chosen = _checked_exit(manifest, exit_layer)
    with load(bundle, EngineOptions(threads=threads, draft=False)) as engine:
        sequence = engine.new_sequence()
        windows = corpus_windows(corpus, engine.tokenizer.encode, max_tokens)
        known = fingerprint_of(manifest, manifest.target_name), chosen, max_tokens
        file = FitFile(bundle, (*known, *map(Path.absolute, corpus)))
        stopping = Event()
        with ProgressBars(count_amount) as bars, stops_on_interrupt(stopping.set):
            fitted = fit(
                sequence,
                manifest.target.config,
                chosen,
                takewhile(lambda _: not stopping.is_set(), windows),
                lambda n_tokens: bars.report("fit", n_tokens, max_tokens),
                file,
            )
    entry = write_maps(bundle, manifest, chosen, fitted, ", ".join(map(str, corpus)))
    file.remove()
    if json:
        print_json({"bundle": str(bundle), **dataclasses.asdict(entry)})
    else:
        write_out(
            f"{bundle}: maps from layer {chosen} of {manifest.target.config.n_layers}, fitted on "
            f"{entry.n_tokens:,} tokens; they miss {entry.unexplained:.1%} of the variance, of "
            f"other texts {entry.held_out:.1%}\n"
        )
    if stopping.is_set():
        raise typer.Exit(130)


def _checked_exit(manifest: BundleManifest, exit_layer: int | None) -> int:
    """Returns the layers that are computed; raises a ConfigError where the model has no such."""
    entry = manifest.target
    if not entry.contract.can.entry or K_CACHE not in entry.contract.inputs:
        raise ConfigError(
            "this bundle's graph has no entry port, which predicted rows need: export the model "
            "again, as a fused graph"
        )
    if entry.contract.backend in CODE_BACKENDS:
        raise ConfigError(
            "predicted rows are written by an ONNX graph, which compiled bundles do not run: "
            "export the model again without --compiler"
        )
    n_layers = entry.config.n_layers
    chosen = n_layers // 2 if exit_layer is None else exit_layer
    if not 0 < chosen < n_layers:
        raise ConfigError(f"--exit is {chosen}, expected 1 to {n_layers - 1} of {n_layers} layers")
    return chosen
