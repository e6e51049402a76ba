"""Edits that were made: files before and after the commits of a repository, or from a file."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby, islice, pairwise
from pathlib import Path, PurePosixPath

from edgedec.autocomplete.edits.lines import lines_with_ends
from edgedec.models.errors import ConfigError
from edgedec.models.fields import Fields
from edgedec.system.files import read_text

_MAX_HUNKS = 12  # of a file; more are a rewrite, not edits
_MAX_HUNK_LINES = 20  # that a hunk takes away or puts in
_MAX_FILES = 4  # of a commit
_MAX_CHARACTERS = 200_000  # of a file
_GIT_TIMEOUT_S = 60
_SOURCES = frozenset(
    [
        "c",
        "cc",
        "cpp",
        "cs",
        "css",
        "go",
        "h",
        "hpp",
        "html",
        "java",
        "js",
        "jsx",
        "kt",
        "lua",
        "md",
        "mjs",
        "php",
        "py",
        "rb",
        "rs",
        "scala",
        "sh",
        "sql",
        "swift",
        "toml",
        "ts",
        "tsx",
        "vue",
        "yaml",
        "yml",
        "zig",
    ]
)
"""Endings of the files whose edits are replayed."""


@dataclass(frozen=True)
class EditedFile:
    """A file before and after a commit."""

    commit: str
    path: str
    before: str
    after: str


@dataclass(frozen=True)
class EditCase:
    """A moment at which an edit may follow.

    group: of the commit, a hexadecimal number. earlier: states of documents until
        then, as (path, text), the oldest first.
    before_key, now: the document without its last key, and with it, and the cursor of each.
    after: what the commit made of the document. follows: it still differs from that.
    """

    name: str
    group: str
    path: str
    earlier: tuple[tuple[str, str], ...]
    before_key: tuple[str, int]
    now: tuple[str, int]
    after: str

    @property
    def follows(self) -> bool:
        """Says whether something in this document is still to be edited."""
        return self.now[0] != self.after

    @property
    def key(self) -> str:
        """Identifies the case by what is in it."""
        parts = [self.path, *map(str, self.earlier), *map(str, (*self.before_key, *self.now))]
        return hashlib.sha256("\0".join([*parts, self.after]).encode()).hexdigest()[:16]


def read_cases(path: Path, n_cases: int) -> list[EditCase]:
    """Returns the newest cases of a repository, or the first of a JSONL file.

    Raises:
        ConfigError: It is neither, or has no edits.
    """
    files = _read_repository(path) if path.is_dir() else iter(_read_file(path))
    commits = (list(group) for _, group in groupby(files, lambda file: file.commit))
    cases = list(islice((case for commit in commits for case in _cases(commit)), n_cases))
    if not cases:
        raise ConfigError(
            f"{path} has no edits that can be replayed: expected commits that change up to "
            f"{_MAX_FILES} files of text, in up to {_MAX_HUNKS} places each"
        )
    return cases


def _cases(files: Sequence[EditedFile]) -> Iterator[EditCase]:
    """Yields a case for each hunk of a commit's files: what follows when it has been made?"""
    earlier: list[tuple[str, str]] = []
    for file in files:
        states = [file.before, *_states(file)]
        earlier.append((file.path, file.before))
        for i, (old, new) in enumerate(pairwise(states), 1):
            yield EditCase(
                f"{PurePosixPath(file.path).name}@{file.commit[:8]}#{i}",
                hashlib.sha256(file.commit.encode()).hexdigest()[:8],
                file.path,
                tuple(earlier),
                *_last_key(old, new),
                file.after,
            )
            earlier.append((file.path, new))


def _states(file: EditedFile) -> Iterator[str]:
    """Yields the file after each of its hunks, from its beginning to its end."""
    old, new = lines_with_ends(file.before), lines_with_ends(file.after)
    for _, _, old_end, _, new_end in _hunks(old, new):
        yield "".join(new[:new_end] + old[old_end:])


def _hunks(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"]


def _last_key(old: str, new: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """Returns a document before and after the last key of an edit, with the cursors.

    What was typed ends with the last character that is no line end. A cut takes one key.
    """
    n_least, start, end = min(len(old), len(new)), 0, 0
    while start < n_least and old[start] == new[start]:
        start += 1
    while end < n_least - start and old[-1 - end] == new[-1 - end]:
        end += 1
    typed = new[start : len(new) - end].rstrip("\r\n")
    at = start + len(typed)
    if len(typed) < 2:
        return (old, min(at, len(old))), (new, at)
    return (new[: at - 1] + new[at:], at - 1), (new, at)


def _is_replayed(file: EditedFile) -> bool:
    if max(len(file.before), len(file.after)) > _MAX_CHARACTERS or "\0" in file.before:
        return False
    hunks = _hunks(lines_with_ends(file.before), lines_with_ends(file.after))
    return 0 < len(hunks) <= _MAX_HUNKS and all(
        max(old_end - old_start, new_end - new_start) <= _MAX_HUNK_LINES
        for _, old_start, old_end, new_start, new_end in hunks
    )


def _read_file(path: Path) -> list[EditedFile]:
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read edits from {path} ({error}): expected JSONL") from None
    files = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path.name}:{number}"
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigError(f"{where} is not JSON: expected {_LINE}") from None
        read = Fields(content, where, ConfigError)
        read.exactly({"commit", "path", "before", "after"})
        file = EditedFile(*(read.text(name) for name in ("commit", "path", "before", "after")))
        if _is_replayed(file):
            files.append(file)
    return files


_LINE = '{"commit": NAME, "path": FILE, "before": TEXT, "after": TEXT} on each line'


def _read_repository(path: Path) -> Iterator[EditedFile]:
    """Yields the files of commits, the newest commit first."""
    commits = _git(path, "rev-list", "--no-merges", "--min-parents=1", "HEAD").split()
    for commit in map(bytes.decode, commits):
        yield from _read_commit(path, commit)


def _read_commit(path: Path, commit: str) -> list[EditedFile]:
    entries = _git(path, "diff-tree", "-r", "-z", "--no-commit-id", "--no-renames", commit)
    fields = entries.decode("utf-8", "replace").split("\0")[:-1]
    files = []
    for facts, name in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, before, after, status = facts.removeprefix(":").split(" ")
        is_text = PurePosixPath(name).suffix[1:].lower() in _SOURCES
        if status == "M" and is_text and {old_mode, new_mode} <= {"100644", "100755"}:
            files.append((name, before, after))
    if not 0 < len(files) <= _MAX_FILES:
        return []
    read = [_edited(path, commit, *file) for file in files]
    whole = [file for file in read if file is not None and _is_replayed(file)]
    return whole if len(whole) == len(files) else []


def _edited(path: Path, commit: str, name: str, before: str, after: str) -> EditedFile | None:
    """Returns a changed file; None if it is no UTF-8 text."""
    try:
        texts = [_git(path, "cat-file", "blob", blob).decode() for blob in (before, after)]
    except UnicodeDecodeError:
        return None
    return EditedFile(commit, name, *texts)


def _git(path: Path, *arguments: str) -> bytes:
    """Returns what git prints. No program that the repository names is run."""
    try:
        done = subprocess.run(
            ["git", "-C", str(path), "-c", "core.fsmonitor=false", *arguments],
            capture_output=True,
            check=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise ConfigError("git is not installed: install it, or name a JSONL file") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"git took over {_GIT_TIMEOUT_S} s in {path}: try again") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ConfigError(
            f"cannot read the history of {path} ({''.join(reason)[:200]}): name a git repository, "
            "or a JSONL file"
        ) from None
    return done.stdout
