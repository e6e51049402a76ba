"""The distribution's Neovim, headless, completes a line by its own keys."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import PROGRAM

pytestmark = pytest.mark.e2e
SUN = "🙂 The sun rises in the east and sets in the"

SCRIPT = """
local cmd = { COMMAND }
local client = vim.lsp.start_client({ name = "edgedec", cmd = cmd })
vim.lsp.buf_attach_client(0, client)
vim.bo.omnifunc = "v:lua.vim.lsp.omnifunc"
vim.o.completeopt = "menu"

local function write(text)
  vim.fn.writefile({ text }, "RESULT")
end
local function press(keys)
  vim.api.nvim_feedkeys(vim.api.nvim_replace_termcodes(keys, true, false, true), "n", false)
end

local is_loaded = false
vim.lsp.handlers["$/progress"] = function(_, result)
  is_loaded = is_loaded or result.value.kind == "end"
end
local n_tries = 0
local timer = vim.loop.new_timer()
timer:start(200, 200, vim.schedule_wrap(function()
  n_tries = n_tries + 1
  local line = vim.api.nvim_buf_get_lines(0, 0, 1, false)[1]
  if #line > #LINE or n_tries > 1000 then
    write(line)
    vim.lsp.stop_client(client)
    vim.cmd("qa!")
  elseif is_loaded and vim.fn.mode() == "n" then
    press("A<C-x><C-o>")
  end
end))
"""


def test_neovim_completes_a_line(smollm2_bundle: Path, tmp_path: Path) -> None:
    if shutil.which("nvim") is None:
        pytest.skip("there is no nvim: apt-get install neovim")
    command = [*PROGRAM, str(smollm2_bundle), "-n", "8", "--min-probability", "0"]
    script = SCRIPT.replace("COMMAND", ", ".join(f"[==[{word}]==]" for word in command))
    script = script.replace("RESULT", str(tmp_path / "result")).replace("LINE", f'"{SUN}"')
    (tmp_path / "script.lua").write_text(script, encoding="utf-8")
    (tmp_path / "text.txt").write_text(f"{SUN}\n", encoding="utf-8")
    subprocess.run(
        ["nvim", "--headless", "-u", "NONE", "-n", "-S", "script.lua", "text.txt"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    assert (tmp_path / "result").read_text(encoding="utf-8").startswith(f"{SUN} west")
