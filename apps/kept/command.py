"""`edgedec kept`: what is kept of your texts on this machine, and its removal."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from edgedec.apps.console.terminal import bytes_text, print_json, write_out
from edgedec.apps.kept.kept_files import KeptFiles, find_files, remove
from edgedec.apps.kept.places import KINDS, forget, places
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
    wanted = [place for place in places() if not kinds or place.kind in kinds]
    found = [files for place in wanted if (files := find_files(place)) is not None]
    if clear:
        for files in found:
            remove(files)
        forget(wanted)
    if json:
        print_json({"kept": [_row(files) for files in found], "is_removed": clear})
    else:
        write_out(_table(found, is_removed=clear))


def _row(kept_files: KeptFiles) -> dict[str, object]:
    return {
        "kind": kept_files.place.kind,
        "path": str(kept_files.place.path),
        "n_files": len(kept_files.files),
        "n_bytes": kept_files.n_bytes,
        "changed": datetime.fromtimestamp(kept_files.changed_s).isoformat(timespec="seconds"),
    }


def _table(found: list[KeptFiles], is_removed: bool) -> str:
    if not found:
        return "nothing is kept of your texts\n"
    lines = [
        f"{kept_files.place.kind:<10} {len(kept_files.files):>5} "
        f"{'file ' if len(kept_files.files) == 1 else 'files'} "
        f"{bytes_text(kept_files.n_bytes):>9}  "
        f"{datetime.fromtimestamp(kept_files.changed_s):%Y-%m-%d %H:%M}  {kept_files.place.path}"
        for kept_files in found
    ]
    end = "removed" if is_removed else "`edgedec kept --clear` removes all of it"
    return "\n".join([*lines, end]) + "\n"
