"""What a suggestion repeats of the text that stands behind the cursor already."""

from __future__ import annotations


def without_repeats(text: str, line_before: str, after: str) -> str:
    """Returns ``text`` up to where it repeats the rest of the line, or the next lines.

    Args:
        line_before: of the cursor's line, what stands before the cursor.
        after: the document behind the cursor.
    """
    rest, _, below = after.partition("\n")
    if rest := rest.rstrip():
        line = text.partition("\n")[0]
        kept = _without_rest(line, rest)
        return text if kept == line else kept
    return _without_next_lines(text, line_before, below)


def _without_rest(line: str, rest: str) -> str:
    """Returns ``line`` without an end that is how ``rest`` begins."""
    stripped = line.rstrip()
    for n in range(min(len(stripped), len(rest)), 0, -1):
        # Part of a word may begin like the rest without repeating it.
        is_repeat = n == len(rest) or not rest[:n].isalnum()
        if is_repeat and stripped.endswith(rest[:n]):
            return stripped[: len(stripped) - n]
    return line


def _without_next_lines(text: str, line_before: str, below: str) -> str:
    """Returns ``text`` up to its first lines that, to its end, are the next ones of the document.

    Blank lines and white space behind lines do not count.
    """
    lines = (line_before + text).split("\n")
    following = _filled(below.split("\n"))
    for n in range(len(lines)):
        repeated = _filled(lines[n:])
        if not repeated:
            break
        if following[: len(repeated)] == repeated:
            return "\n".join(lines[:n])[len(line_before) :] if n else ""
    return text


def _filled(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()]
