"""`edgedec kept`: what is kept of your texts on this machine, and its removal."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from edgedec.apps.console.terminal import bytes_text, print_json, write_out
from edgedec.apps.kept.kept_files import KeptFiles, find_files, remove
from edgedec.apps.kept_texts.places import KINDS, forget, places
from edgedec.apps.options import common as options


def kept(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="KIND...", help=f"Only these kinds: {', '.join(KINDS)}."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove what is listed.")] = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """List what is kept of your texts on this machine, and remove it.

    Nothing is kept unless an option or a setting asks for it. Files that you named count, too, if
    edgedec wrote them.

    Examples:

      edgedec kept

      edgedec kept --clear

      edgedec kept prefixes sessions --clear
    """
    for kind in kinds or ():
        if kind not in KINDS:
            raise typer.BadParameter(f"got {kind}, expected {', '.join(KINDS)}")
    chosen = [place for place in places() if not kinds or place.kind in kinds]
    kept_files = [files for place in chosen if (files := find_files(place)) is not None]
    if clear:
        for files in kept_files:
            remove(files)
        forget(chosen)
    if json:
        print_json({"kept": [_row(files) for files in kept_files], "is_removed": clear})
    else:
        write_out(_table(kept_files, is_removed=clear))


def _row(files: KeptFiles) -> dict[str, object]:
    return {
        "kind": files.place.kind,
        "path": str(files.place.path),
        "n_files": len(files.files),
        "n_bytes": files.n_bytes,
        "changed": datetime.fromtimestamp(files.changed_s).isoformat(timespec="seconds"),
    }


def _table(rows: list[KeptFiles], is_removed: bool) -> str:
    if not rows:
        return "nothing is kept of your texts\n"
    lines = [
        f"{files.place.kind:<10} {len(files.files):>5} "
        f"{'file ' if len(files.files) == 1 else 'files'} "
        f"{bytes_text(files.n_bytes):>9}  "
        f"{datetime.fromtimestamp(files.changed_s):%Y-%m-%d %H:%M}  {files.place.path}"
        for files in rows
    ]
    end = "removed" if is_removed else "`edgedec kept --clear` removes all of it"
    return "\n".join([*lines, end]) + "\n"
