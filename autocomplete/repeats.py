"""What a suggestion repeats of the text that stands behind the cursor already."""

from __future__ import annotations

import re

_OPENERS = {")": "(", "]": "[", "}": "{"}
_QUOTES = "\"'`"
_HEAD = re.compile(r"(\w[^()=;]*\w)\s*\(.*(?:[{:]|\))\s*$")
_END_TAG = re.compile(r"\s*</([A-Za-z][\w:.-]*)")
_ELEMENT_END = re.compile(r"</[A-Za-z][\w:.-]*\s*>")
_CLAUSE = re.compile(
    r"[)\]}]|</|(?:else|elif|elsif|except|finally|catch|case|default|rescue|ensure|end|fi|done|esac)\b"
    r"|#\s*(?:if|ifdef|ifndef|else|elif|endif|define|undef|pragma|include)\b"
)
"""Lines that go on with a block, or end it, though they are indented less."""
_LABEL = re.compile(r"(?:public|private|protected)(?: \w+)?:|#.*")
"""Lines that are indented less than what they belong to."""
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
    is_block = line != text and _is_blank(line_before) and rest.lstrip()[:1] in _OPENERS
    if rest and not is_block and (kept := _without_rest(line, line_before, rest)) != line:
        return kept
    if rest and (closer := rest.lstrip()[0]) in _OPENERS:
        text = text[
            : _last_closing(text, closer, line_before, below)
        ]  # several lines within the brackets
    elif rest:
        text = _before_rest(text, rest.strip())
    text = text[: _end_of_element(text, line_before, after)]
    return _without_next_lines(text, line_before, after, n_own=1 if rest else 0)


def _without_rest(line: str, line_before: str, rest: str) -> str:
    """Returns ``line`` without an end that is how ``rest`` begins, or what comes behind that."""
    stripped, first = line.rstrip(), rest.lstrip()[0]
    if first in _OPENERS:
        at = _closing(line, first)
        return line[:at].rstrip() if at < len(line) and rest[0].isspace() else line[:at]
    if first in _QUOTES and line_before.count(first) % 2 == 1:
        # One behind a backslash ends nothing.
        match = re.match(rf"(?:[^{first}\\]|\\.)*", line)
        return match[0] if match else line
    for behind in dict.fromkeys((rest, rest.lstrip())):
        for n in range(min(len(stripped), len(behind)), 0, -1):
            # Part of a word, or a quote, may begin like the rest without repeating it.
            is_part = behind[:n].isalnum() and behind[n : n + 1].isalnum()
            may_begin = is_part or first in _QUOTES
            if stripped.endswith(behind[:n]) and (n == len(behind) or not may_begin):
                return stripped[: len(stripped) - n]
    return line


def _before_rest(text: str, rest: str) -> str:
    """Returns ``text`` up to where a further line of it ends as the document's line does."""
    if not any(map(str.isalnum, rest)):
        return text
    lines = text.split("\n")
    for n, line in enumerate(lines[1:], 1):
        if line.rstrip().endswith(rest):
            return "\n".join([*lines[:n], line.rstrip().removesuffix(rest)])
    return text


def _end_of_element(text: str, line_before: str, after: str) -> int:
    """Returns where ``text`` ends the element whose end tag the document has next."""
    tag = _END_TAG.match(after)
    if tag is None:
        return len(text)
    depth = 0
    for match in re.finditer(rf"<(/?){re.escape(tag[1])}(?=[\s>/])[^<>]*(?<!/)>", text):
        depth += -1 if match[1] else 1
        if depth < 0:
            line = text[: match.start()].rpartition("\n")[2]
            is_first = line == text[: match.start()]
            is_alone = not (line.strip() or (is_first and line_before.strip()))
            return match.start() - (len(line) if is_alone and after[:1] in "\r\n" else 0)
    return len(text)


def _closing(line: str, closer: str) -> int:
    """Returns where ``closer`` closes what was opened before ``line``; its end if it does not."""
    depth = 0
    for i, character in enumerate(line):
        depth += (character == _OPENERS[closer]) - (character == closer)
        if depth < 0:
            return i
    return len(line)


def _last_closing(text: str, closer: str, line_before: str, below: str) -> int:
    """Returns where ``text`` has the closing bracket that the document's line goes on with.

    Others close what lies within. Where they stand at the beginnings of lines, indentation tells
    them apart: that bracket stands above the document's next line, or further in than the next
    closing bracket.
    """
    depth, places = 0, []
    for i, character in enumerate(text):
        depth += (character == _OPENERS[closer]) - (character == closer)
        if depth < 0:
            places.append(i)
            depth = 0
    next_line = _next_line(_filled(below.split("\n")))
    widths = [_line_start(line_before + text[:place]) for place in places]
    if not places or next_line is None or widths[0] is None:
        return places[0] if places else len(text)
    margin = _width(next_line)
    outer = next((n for n, w in enumerate(widths) if w is not None and w <= margin), len(places))
    if next_line.lstrip()[0] in _OPENERS:
        return places[max(0, outer - 1)]
    return places[outer] if outer < len(places) else len(text)


def _line_start(text: str) -> int | None:
    """Returns the width of the blanks on the last line of ``text``; None where there is more."""
    line = text.rpartition("\n")[2]
    return None if line.strip() else len(line.expandtabs())


def _next_line(following: list[str]) -> str | None:
    """Returns the first line that is indented as what it belongs to."""
    return next((line for line in following if not _LABEL.fullmatch(line.strip())), None)


def _without_next_lines(text: str, line_before: str, after: str, n_own: int) -> str:
    """Returns ``text`` up to its first line that is the next one of the document.

    Blank lines and white space behind lines do not count. Lines of marks alone, such as ``}``,
    are common: they count if all lines to the end of the text are the next ones. A bracket that
    the document closes at the same indentation ends the text, as does a definition that the
    document has there, or below at its margin.

    n_own: lines of ``text`` that stand on the document's line, and are not looked at.
    """
    lines = (line_before + text).split("\n")
    following = _filled(after.split("\n")[1:])
    lines = lines[: _first_closing(lines, line_before, after)]
    heads = {*map(_head_of, following[:1]), *map(_head_of, filter(_is_at_margin, following))}
    if not after.partition("\n")[0].rstrip().endswith(tuple(_OPENERS.values())):
        lines = lines[: _end_of_block(lines, line_before, following)]
    closed = "\n".join(lines)[len(line_before) :]
    for n in range(n_own, len(lines)):
        repeated = _filled(lines[n:])
        if not repeated:
            break
        is_next = following[:1] == repeated[:1] and _says_something(repeated[0])
        is_next = is_next or (n > 0 and _goes_on(repeated, following))
        is_next = is_next or (n > 0 and _head_of(lines[n]) in heads - {None})
        is_tag = _ELEMENT_END.fullmatch(repeated[0].strip())  # looked at already
        if is_next or (following[: len(repeated)] == repeated and not is_tag):
            return "\n".join(lines[:n])[len(line_before) :].removesuffix("\r") if n else ""
    return closed.removesuffix("\r")


def _says_something(line: str) -> bool:
    """Returns whether a line is more than marks and end tags, which are alike everywhere."""
    return any(map(str.isalnum, _ELEMENT_END.sub("", line)))


def _goes_on(lines: list[str], following: list[str]) -> bool:
    """Returns whether ``lines`` begin as ``following`` does, however they are indented.

    One line that the document has next counts if it goes on with a block, else two do.
    """
    ours, theirs = ([line.strip() for line in some[:2]] for some in (lines, following))
    if not theirs or ours[0] != theirs[0] or not _says_something(ours[0]):
        return False
    return bool(_CLAUSE.match(ours[0])) or (len(theirs) > 1 and ours == theirs)


def _end_of_block(lines: list[str], line_before: str, following: list[str]) -> int:
    """Returns the first of ``lines`` behind the block that the document goes on from.

    That is one which is indented as little as the document's next line, or less, where the block
    is indented more; lines that close something, such as ``}`` and ``else``, are part of it.
    """
    next_line = _next_line(following)
    if next_line is None:
        return len(lines)
    inner = next(
        (line for n, line in enumerate(lines) if line.strip() and (n or _is_blank(line_before))), ""
    )
    margin = _width(next_line)
    if line_before.rstrip().endswith(tuple(_OPENERS.values())) and margin >= _width(line_before):
        ends = (n + 1 for n, line in _open_ends(lines, len(line_before)) if n and _ends(line))
        end = next(ends, len(lines))
        blank = next((n for n in range(end, len(lines)) if lines[n].strip()), len(lines))
        lines = lines[: blank if end < len(lines) else end]
    for n, line in enumerate(lines):
        is_out = _width(line) < margin or (_width(line) == margin < _width(inner))
        if n and line.strip() and is_out and not _CLAUSE.match(line.strip()):
            return n
    return len(lines)


def _ends(line: str) -> bool:
    """Returns whether a line that closes a block opens no other, as ``} else {`` does."""
    return not line.rstrip().endswith((*_OPENERS.values(), ":"))


def _is_blank(text: str) -> bool:
    return not text.strip()


def _width(line: str) -> int:
    return len(_indent(line.expandtabs()))


def _first_closing(lines: list[str], line_before: str, after: str) -> int:
    """Returns the first of ``lines`` that closes what lines behind the cursor's close, too.

    If there is none, it is their number.
    """
    ours = _open_ends(lines, len(line_before))
    theirs = _open_ends(after.split("\n"), 0)
    indents = {_indent(line) for n, line in theirs if n}
    return next((n for n, line in ours if n and _indent(line) in indents), len(lines))


def _open_ends(lines: list[str], start: int) -> list[tuple[int, str]]:
    """Returns lines that begin with a bracket which closes what was opened before them all.

    start: of the first line, characters that stand before the text.
    """
    ends, depth = [], 0
    for n, line in enumerate(lines):
        part = line[start:] if n == 0 else line
        first = part.strip()[:1]
        if first in _OPENERS and depth == 0:
            ends.append((n, line))
        for character in _without_quoted(part):
            depth += (character in _OPENERS.values()) - (character in _OPENERS)
        depth = max(depth, 0)
    return ends


def _without_quoted(line: str) -> str:
    return re.sub(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|//.*|(?:^|\s)#(?=[\s!#]).*", "", line)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _is_at_margin(line: str) -> bool:
    return bool(line) and not line[0].isspace()


def _head_of(line: str) -> str | None:
    """Returns how a line defines a function: all before its arguments. None if it does not."""
    match = _HEAD.match(line.strip())
    if match is None or match[1] in _NO_HEADS or " " not in match[1]:
        return None
    return _indent(line) + " ".join(match[1].split())


def _filled(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()]
