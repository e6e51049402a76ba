"""Tokens to text as they appear."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence

_N_BEFORE = 8
"""Tokens before an output that decide how its first one is spelt."""
_N_OF_RUN = 4
"""Bytes of a run that decide how the token behind it is spelt."""
_INCOMPLETE = "\ufffd"


class StreamDecoder:
    """Decodes one output token by token, never splitting a character.

    A byte that completes no character becomes U+FFFD, and the output goes on.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        byte_values: Mapping[int, int],
        before: Sequence[int] = (),
        is_bytewise: bool = False,
    ) -> None:
        """Makes a decoder.

        Args:
            decode: Gives the text of tokens, nothing for those that are not shown.
            byte_values: Tokens that stand for one byte each, where others stand for characters.
            before: What the output goes on from. Without it the output is a text of its own, whose
                opening blank some tokenizers leave out.
            is_bytewise: The text of tokens is that of their bytes, one behind the other.
        """
        self._decode = decode
        self._byte_values = byte_values
        self._is_bytewise = is_bytewise
        self._window = list(before[-_N_BEFORE:])  # of which the text is out
        self._shown = decode(self._window) if self._window else ""
        self._held: list[int] = []  # tokens since then
        self._run: list[int] = []  # bytes since then
        self._bytes = getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Returns the text that ``token`` completes; may be empty."""
        if self._is_bytewise and not self._held:
            text = self._decode((token,))
            if _INCOMPLETE not in text:  # whole characters, whatever comes before and behind
                self._window, self._shown = [], ""
                return text
        if (value := self._byte_values.get(token)) is not None:
            self._run.append(token)
            text = self._bytes.decode(bytes([value]))
            is_opening = text == " " and not self._window and len(self._run) == 1
            return self._decode(self._run) if is_opening else text
        ended = self._end_run() if self._run else ""
        self._held.append(token)
        return ended + self._take()

    def flush(self) -> str:
        """Returns what incomplete characters at the end of the output decode to."""
        return self._end_run() if self._run else self._take(is_last=True)

    def _take(self, is_last: bool = False) -> str:
        """Returns the text of the tokens held, nothing while a character is incomplete."""
        text = self._decode([*self._window, *self._held])
        may_go_on = not self._byte_values and text.endswith(_INCOMPLETE)
        if text == self._shown or (may_go_on and not is_last):
            return ""
        is_appended = text.startswith(self._shown)
        piece = text[len(self._shown) :] if is_appended else self._decode(self._held)
        self._window, self._held = self._held, []
        self._shown = self._decode(self._window)
        return piece

    def _end_run(self) -> str:
        rest = self._bytes.decode(b"", final=True)
        self._bytes.reset()
        self._window, self._held, self._run = self._run[-_N_OF_RUN:], [], []
        self._shown = self._decode(self._window)
        return rest
