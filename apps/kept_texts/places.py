"""The places where edgedec keeps its user's texts. It keeps them only if asked.

The program's own folders are known. Files that a user named are in a register, by their paths.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from edgedec.system.files import replace_text

KINDS = {
    "prefixes": "what the model read of prompts",
    "sessions": "what the model read and wrote",
    "learned": "lines and accepted suggestions",
    "histories": "the lines you type",
    "replays": "texts that a draft head learns from",
    "stores": "prompts and answers, to draft from",
}
"""Kind of what is kept -> what that is."""


@dataclass(frozen=True)
class Place:
    """A file or a folder in which texts of one kind are kept."""

    kind: str
    path: Path


def remember(kind: str, path: Path, bound: str) -> str | None:
    """Puts a place into the register; returns a remark for the user at its first use.

    Args:
        kind: Of `KINDS`.
        path: A file or a folder.
        bound: The most that is kept there, such as ``1024 MB``.
    """
    place = Place(kind, path.absolute())
    known = _registered()
    if place in known:
        return None
    _write([*known, place])
    return (
        f"{place.path} keeps {KINDS[kind]}, for you alone (at most {bound}); "
        "`edgedec kept` lists and removes it"
    )


def remember_prefixes(n_mb: int, folder: Path | None = None) -> str | None:
    """As `remember`, of beginnings of prompts; None if none are kept."""
    return remember("prefixes", folder or _prefixes(), f"{n_mb} MB") if n_mb else None


def places() -> list[Place]:
    """Returns every place where texts may be kept, the program's own folders first."""
    state = Path(platformdirs.user_state_dir("edgedec"))
    standing = [
        Place("prefixes", _prefixes()),
        Place("learned", state / "learned"),
        Place("sessions", state / "sessions"),
    ]
    return list(dict.fromkeys([*standing, *_registered()]))


def forget(gone: list[Place]) -> None:
    """Takes places out of the register."""
    known = _registered()
    if left := [place for place in known if place not in gone]:
        _write(left)
    elif known:
        with suppress(OSError):
            _register().unlink()


def _prefixes() -> Path:
    return Path(platformdirs.user_cache_dir("edgedec")) / "prefixes"


def _register() -> Path:
    return Path(platformdirs.user_state_dir("edgedec")) / "kept.json"


def _registered() -> list[Place]:
    try:
        rows = json.loads(_register().read_bytes())
        registered = [Place(row["kind"], Path(row["path"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [place for place in registered if place.kind in KINDS]


def _write(known: list[Place]) -> None:
    """Writes the register; without a folder for it, every use is a first one."""
    rows = [asdict(place) | {"path": str(place.path)} for place in known]
    with suppress(OSError):
        _register().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(_register(), json.dumps(rows, indent=2), is_private=True)
