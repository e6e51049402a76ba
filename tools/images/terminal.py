"""A program in a terminal that nobody sees, and what it shows. Needs tmux."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

PATIENCE_S = 1800
_LOOK_S = 0.2
_FONT = re.compile(r"@font-face \{.*?\}\n", re.DOTALL)


class Terminal:
    """Runs a command in a terminal of tmux's, which ends with the block."""

    def __init__(self, command: Sequence[str], folder: Path, columns: int, lines: int) -> None:
        if shutil.which("tmux") is None:
            raise SystemExit("there is no tmux: install it, for example with apt install tmux")
        self._columns, self._socket = columns, str(folder / "tmux.socket")
        size = ("-x", str(columns), "-y", str(lines))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), *command)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    @property
    def text(self) -> str:
        """What is seen, without colours."""
        return self._tmux("capture-pane", "-p")

    @property
    def history(self) -> str:
        """What was shown since the beginning, long lines whole, without colours."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    def clear(self) -> None:
        """Forgets what was shown; the prompt is at the top."""
        self.press("C-l")
        time.sleep(_LOOK_S)
        self._tmux("clear-history")

    def type(self, text: str) -> None:
        """Presses the keys of a text."""
        self._tmux("send-keys", "-l", "--", text)

    def press(self, key: str) -> None:
        """Presses a key by its name, such as Enter or Escape."""
        self._tmux("send-keys", key)

    def until(self, is_so: Callable[[str], bool]) -> None:
        """Waits until what is seen is as wanted."""
        end_s = time.monotonic() + PATIENCE_S
        while not is_so(self.text):
            if time.monotonic() > end_s:
                raise SystemExit(f"the terminal does not get there:\n{self.text}")
            time.sleep(_LOOK_S)

    def drawn(self, title: str) -> str:
        """Returns what is seen as an SVG that fetches nothing."""
        console = Console(width=self._columns, record=True, file=io.StringIO())
        for line in self._tmux("capture-pane", "-p", "-e").splitlines():
            console.print(Text.from_ansi(line), no_wrap=True)
        return _FONT.sub("", console.export_svg(title=title, theme=DIMMED_MONOKAI))

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout
