"""Records what a new person types and sees, from a fresh clone to three ends, as a page.

python tools/record_first_hour.py docs/first-hour.md

The commands are those of pages, where they have to stand word for word. They run in a fresh clone
with an empty home, in a terminal of tmux. Needs git, tmux, and Neovim 0.11 on the path. Without the
Hugging Face hub, --coder names a model to take in place of the page's.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "images"))

from terminal import Terminal

ROOT = Path(__file__).parents[1]
_COLUMNS, _LINES = 100, 24
_PAUSE_S = 3
_CODER = "qwen2.5-coder-0.5b-instruct"
_HEAD = """# The first hour, recorded

What a new person types and sees, in a fresh clone with an empty home. The commands are those of the
page that each section names. Lists that pip prints and empty lines of the editor are left out.
`python tools/record_first_hour.py docs/first-hour.md` records this page{remark}.
"""
_LEFT_OUT = (
    "Requirement already satisfied", "Looking in", "Collecting", "Downloading", "WARNING:", "━",
    *"⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏",
)  # fmt: skip
"""How lines begin that are left out: pip's, and progress that was drawn over."""

_WAITING = re.compile(r"(?:(?:\(\.venv\) )?\$|\n>)\Z")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Way:
    """A way from nothing to something, by commands of a page."""

    title: str
    page: str
    commands: tuple[str, ...]


CHAT = Way(
    "From a clone to an answer",
    "quickstart/chat.md",
    ("make run", "source .venv/bin/activate", "edgedec chat smollm2-135m-instruct"),
)
EDITOR = Way(
    "To a suggestion in an editor",
    "quickstart/editor.md",
    (
        "pip install 'edgedec-runtime[lsp]'",
        f"edgedec export {_CODER} -o ~/coder.edgedec",
        "mkdir -p ~/.config/nvim ~/.local/share/nvim/site/pack/edgedec/start",
        'ln -s "$(edgedec lsp --neovim)" ~/.local/share/nvim/site/pack/edgedec/start/edgedec',
        """echo 'require("edgedec").setup({ bundle = "~/coder.edgedec" })' """
        ">> ~/.config/nvim/init.lua",
    ),
)
PYTHON = Way(
    "To an answer in JSON from Python",
    "quickstart/embed.md",
    ("pip install 'edgedec-runtime[grammar]'", "python colours.py"),
)


class Recorder:
    """Types into a terminal and takes down what is seen."""

    def __init__(self, terminal: Terminal, home: Path, coder: str) -> None:
        self._terminal, self._home, self._coder = terminal, home, coder

    @property
    def _seen(self) -> str:
        time.sleep(_PAUSE_S)
        return shown(self._terminal.history, self._home)

    def begin(self, way: Way, ends: Callable[[str], bool]) -> None:
        """Types the commands of a way; the last one is over when what is seen ``ends`` it."""
        page = _page(way)
        self._terminal.clear()
        for command in way.commands:
            if command not in page:
                raise SystemExit(f"docs/{way.page} does not have the command {command!r}")
            self._type(command.replace(_CODER, self._coder))
            self._terminal.until(_is_prompt if command != way.commands[-1] else ends)

    def chat(self) -> str:
        """Returns the section of a chat."""
        self.begin(CHAT, lambda text: text.rstrip().endswith(">"))
        self._type("Name three rivers.")
        self._terminal.until(lambda text: "tokens/s" in text and text.rstrip().endswith(">"))
        section = _section(CHAT, self._seen)
        self._terminal.press("C-d")
        self._terminal.until(_is_prompt)
        return section

    def editor(self) -> str:
        """Returns the section of an editor: its last screen has the suggestion."""
        self.begin(EDITOR, _is_prompt)
        typed = self._seen
        self._type("nvim notes.txt")
        self._terminal.until(lambda text: "~" in text)
        self._terminal.type("iThe sun rises in the east and sets in the")
        self._terminal.until(lambda text: "in the west" in text or self._type_again())
        lines = self._terminal.text.splitlines()
        screen = "\n".join(line for line in lines if line.strip() != "~")
        self._terminal.press("Escape")
        self._type(":qa!")
        self._terminal.until(_is_prompt)
        return _section(EDITOR, f"{typed}\n(.venv) $ nvim notes.txt\n{screen}")

    def python(self, folder: Path) -> str:
        """Returns the section of Python; its program is the page's."""
        match = _BLOCK.search(_page(PYTHON))
        assert match is not None
        (folder / "colours.py").write_text(match[1], encoding="utf-8")
        self._type("ln -s build/smollm2.edgedec smollm2.edgedec")
        self._terminal.until(_is_prompt)
        self.begin(PYTHON, _is_prompt)
        return _section(PYTHON, self._seen)

    def _type_again(self) -> bool:
        """Types the last letter again, for the model may have come after it; returns False."""
        self._terminal.press("BSpace")
        self._terminal.type("e")
        time.sleep(_PAUSE_S)
        return False

    def _type(self, line: str) -> None:
        self._terminal.type(line)
        self._terminal.until(lambda text: not _is_prompt(text))  # now it is seen
        self._terminal.press("Enter")


def shown(history: str, home: Path) -> str:
    """Returns what a terminal shows without the prompt that waits, pip's lists and progress."""
    text = _WAITING.sub("", history.replace(str(home), "~").rstrip())
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(_LEFT_OUT))


def _page(way: Way) -> str:
    return (ROOT / "docs" / way.page).read_text(encoding="utf-8")


def _is_prompt(text: str) -> bool:
    lines = text.rstrip().splitlines()
    return bool(lines) and lines[-1].rstrip().endswith("$")


def _section(way: Way, seen: str) -> str:
    lines = "\n".join(line.rstrip() for line in seen.strip().splitlines())
    return f"## {way.title}\n\nThe page: [{way.page}]({way.page}).\n\n```text\n{lines}\n```\n"


def main() -> None:
    """Records the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--coder", default=_CODER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        home, clone = Path(name), Path(name) / "edgedec"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        environment = {"HOME": name, "PS1": "$ ", "XDG_CACHE_HOME": str(home / ".cache")}
        kept = [f"{key}={value}" for key, value in (os.environ | environment).items()]
        shell = ["env", "-i", *kept, "bash", "--norc", "--noprofile"]
        with Terminal(shell, home, _COLUMNS, _LINES) as terminal:
            terminal.type(f"cd {clone}")
            terminal.press("Enter")
            terminal.until(_is_prompt)
            recorder = Recorder(terminal, home, options.coder)
            sections = [recorder.chat(), recorder.editor(), recorder.python(clone)]
    remark = "" if options.coder == _CODER else f", here with the model `{options.coder}`"
    options.page.write_text("\n".join([_HEAD.format(remark=remark), *sections]), encoding="utf-8")


if __name__ == "__main__":
    main()
