"""`edgedec store`: fills n-gram stores, which `run` and `chat` draft from, and shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from edgedec.apps.console.help_pages import HelpCommand, HelpGroup
from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.terminal import bytes_text, print_json, stops_on_interrupt, write_out
from edgedec.apps.model_names import named_bundle
from edgedec.apps.options import common as options
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import TOKENIZER_NAME, read_manifest
from edgedec.runtime.drafting.ngrams.ngram_file import StoreFacts, describe
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore, SeedReport
from edgedec.runtime.methods.store_source import tokenizer_sha256
from edgedec.runtime.text.tokenizer import Tokenizer

_HELP = """Fill n-gram stores, which `auto` and `store` draft from, and show them.

Examples:

  edgedec store seed code.ngrams src --bundle smollm2.edgedec

  edgedec store info code.ngrams
"""

store = typer.Typer(cls=HelpGroup, help=_HELP, no_args_is_help=True, rich_markup_mode=None)

StoreFile = Annotated[Path, typer.Argument(metavar="FILE", help="The n-gram store.")]


@store.command(cls=HelpCommand)
def seed(
    file: StoreFile,
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders with text or code.")
    ],
    bundle: Annotated[
        Path,
        option("BUNDLE", "Bundle or model that will draft from the store.", callback=named_bundle),
    ],
    max_mb: Annotated[
        int | None, option("N", "Maximum size of the store in MB (default 8).", min=1)
    ] = None,
    parallel: Annotated[
        int,
        option("N", "Encode N files at a time. The store is the same; 1 keeps to one core.", min=1),
    ] = 32,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Add the texts in folders to a store. The store is created if missing.

    Skips hidden files, links, files above 1 MB and files that are not UTF-8. A store belongs to the
    tokenizer of one bundle. Ctrl-C stops and keeps what was read (exit code 130).

    Examples:

      edgedec store seed code.ngrams src tests --bundle smollm2.edgedec

      edgedec store seed notes.ngrams ~/notes --bundle smollm2.edgedec --max-mb 64
    """
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"got {folder}, expected a folder of text or code to read")
    manifest = read_manifest(bundle)
    manifest.check_writes()
    sha256 = tokenizer_sha256(manifest)
    encode = Tokenizer.load(bundle / TOKENIZER_NAME).encode_many
    opened = NgramStore.open(file, sha256, None if max_mb is None else max_mb * 10**6)
    report, is_stopped = _seed(opened, folders, encode, parallel)
    facts = describe(file)
    if json:
        added = dataclasses.asdict(report)
        print_json({"store": str(file), "added": added, **dataclasses.asdict(facts)})
    else:
        write_out(_summary(report, file, facts))
    if is_stopped:
        raise typer.Exit(130)


@store.command(cls=HelpCommand)
def info(file: StoreFile, json: options.Json = False, debug: options.Debug = False) -> None:
    """Show how much a store holds, and which tokenizer it belongs to.

    Examples:

      edgedec store info code.ngrams

      edgedec store info code.ngrams --json
    """
    if not file.exists():
        raise ConfigError(f"there is no n-gram store {file}: make it with `edgedec store seed`")
    facts = describe(file)
    if json:
        print_json({"store": str(file), **dataclasses.asdict(facts)})
        return
    rows = {
        "texts": f"{facts.n_texts:,}",
        "tokens": f"{facts.n_tokens:,}",
        "size": f"{bytes_text(facts.n_bytes)} of {bytes_text(facts.max_bytes)}",
        "tokenizer": facts.tokenizer_sha256[:16],
        "version": str(facts.version),
    }
    write_out(f"{file}\n" + "".join(f"  {name:<10} {row}\n" for name, row in rows.items()))


def _seed(
    opened: NgramStore,
    folders: Sequence[Path],
    encode: Callable[[Sequence[str]], Sequence[Sequence[int]]],
    parallel: int,
) -> tuple[SeedReport, bool]:
    """Returns what was added of all ``folders``, and whether Ctrl-C ended it."""
    is_asked = False

    def ask() -> None:
        nonlocal is_asked
        is_asked = True

    total = SeedReport()
    with ProgressBars(count_amount, has_lines=True) as bars, stops_on_interrupt(ask):
        for folder in folders:
            added = opened.seed(
                folder,
                encode,
                partial(_report, bars, f"read {folder}"),
                lambda: is_asked,
                parallel,
            )
            total = total.plus(added)
    return total, is_asked


def _report(bars: ProgressBars, phase: str, _: str, done: int, total: int) -> None:
    bars.report(phase, done, total)


def _summary(report: SeedReport, file: Path, facts: StoreFacts) -> str:
    lines = [
        f"added {report.n_files:,} files, {report.n_tokens:,} tokens; skipped {report.n_skipped:,}",
        f"{file} holds {facts.n_tokens:,} tokens in {facts.n_texts:,} texts, "
        f"{bytes_text(facts.n_bytes)} of {bytes_text(facts.max_bytes)}",
    ]
    if report.is_full:
        lines.append("it is full: --max-mb lets it hold more")
    return "".join(f"{line}\n" for line in lines)
