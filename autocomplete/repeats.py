"""What a suggestion repeats of the text that stands behind the cursor already."""

from __future__ import annotations

import re

_OPENERS = {")": "(", "]": "[", "}": "{"}
_QUOTES = "\"'`"
_HEAD = re.compile(r"(\w[^()=;]*\w)\s*\(.*(?:[{:]|\))\s*$")
_NO_HEADS = frozenset(["if", "for", "while", "switch", "elif", "else if", "with", "match", "catch"])


def without_repeats(text: str, line_before: str, after: str) -> str:
    """Returns ``text`` up to where it repeats the rest of the line, or the next lines.

    Args:
        line_before: of the cursor's line, what stands before the cursor.
        after: the document behind the cursor.
    """
    rest, _, below = after.partition("\n")
    rest = rest.rstrip()
    line = text.partition("\n")[0]
    if rest and (kept := _without_rest(line, line_before, rest)) != line:
        return kept
    if rest and (closer := rest.lstrip()[0]) in _OPENERS:
        text = text[: _closing(text, closer)]  # several lines within the brackets
    return _without_next_lines(text, line_before, below, n_own=1 if rest else 0)


def _without_rest(line: str, line_before: str, rest: str) -> str:
    """Returns ``line`` without an end that is how ``rest`` begins, or what comes behind that."""
    stripped, first = line.rstrip(), rest.lstrip()[0]
    if first in _OPENERS:
        at = _closing(line, first)
        return line[:at].rstrip() if at < len(line) and rest[0].isspace() else line[:at]
    if first in _QUOTES and line_before.count(first) % 2 == 1:
        # One behind a backslash ends nothing.
        found = re.match(rf"(?:[^{first}\\]|\\.)*", line)
        return found[0] if found else line
    for behind in dict.fromkeys((rest, rest.lstrip())):
        for n in range(min(len(stripped), len(behind)), 0, -1):
            # Part of a word, or a quote, may begin like the rest without repeating it.
            is_part = behind[:n].isalnum() and behind[n : n + 1].isalnum()
            may_begin = is_part or first in _QUOTES
            if stripped.endswith(behind[:n]) and (n == len(behind) or not may_begin):
                return stripped[: len(stripped) - n]
    return line


def _closing(line: str, closer: str) -> int:
    """Returns where ``closer`` closes what was opened before ``line``; its end if it does not."""
    depth = 0
    for i, character in enumerate(line):
        depth += (character == _OPENERS[closer]) - (character == closer)
        if depth < 0:
            return i
    return len(line)


def _without_next_lines(text: str, line_before: str, below: str, n_own: int) -> str:
    """Returns ``text`` up to its first line that is the next one of the document.

    Blank lines and white space behind lines do not count. Lines of marks alone, such as ``}``,
    are common: they count if all lines to the end of the text are the next ones. A bracket that
    the document closes at the same indentation ends the text, as does a definition that the
    document has there, or below at its margin.

    n_own: lines of ``text`` that stand on the document's line, and are not looked at.
    """
    lines = (line_before + text).split("\n")
    following = _filled(below.split("\n"))
    lines = lines[: _first_closing(lines, line_before, below)]
    heads = {*map(_head_of, following[:1]), *map(_head_of, filter(_is_at_margin, following))}
    closed = "\n".join(lines)[len(line_before) :]
    for n in range(n_own, len(lines)):
        repeated = _filled(lines[n:])
        if not repeated:
            break
        is_next = following[:1] == repeated[:1] and any(map(str.isalnum, repeated[0]))
        is_next = is_next or (n > 0 and _head_of(lines[n]) in heads - {None})
        if is_next or following[: len(repeated)] == repeated:
            return "\n".join(lines[:n])[len(line_before) :].removesuffix("\r") if n else ""
    return closed.removesuffix("\r")


def _first_closing(lines: list[str], line_before: str, below: str) -> int:
    """Returns the first of ``lines`` that closes what ``below`` closes, too; else their number."""
    ours = _open_ends(lines, len(line_before))
    theirs = _open_ends(below.split("\n"), 0)
    indents = {_indent(line) for _, line in theirs}
    return next((n for n, line in ours if n and _indent(line) in indents), len(lines))


def _open_ends(lines: list[str], start: int) -> list[tuple[int, str]]:
    """Returns lines that begin with a bracket which closes what was opened before them all.

    start: of the first line, characters that stand before the text.
    """
    found, depth = [], 0
    for n, line in enumerate(lines):
        part = line[start:] if n == 0 else line
        first = part.strip()[:1]
        if first in _OPENERS and depth == 0:
            found.append((n, line))
        for character in _without_quoted(part):
            depth += (character in _OPENERS.values()) - (character in _OPENERS)
        depth = max(depth, 0)
    return found


def _without_quoted(line: str) -> str:
    return re.sub(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|//.*|#.*", "", line)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _is_at_margin(line: str) -> bool:
    return bool(line) and not line[0].isspace()


def _head_of(line: str) -> str | None:
    """Returns how a line defines a function: all before its arguments. None if it does not."""
    found = _HEAD.match(line.strip())
    if found is None or found[1] in _NO_HEADS or " " not in found[1]:
        return None
    return _indent(line) + " ".join(found[1].split())


def _filled(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()]
