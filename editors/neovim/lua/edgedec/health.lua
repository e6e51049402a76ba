--- `:checkhealth edgedec`
local M = {}

function M.check()
  local edgedec = require("edgedec")
  local program, bundle = edgedec.options.cmd[1], edgedec.options.bundle
  vim.health.start("edgedec")
  if vim.fn.has("nvim-0.11") == 1 then
    vim.health.ok("Neovim " .. tostring(vim.version()))
  else
    vim.health.error("Neovim is too old", "install Neovim 0.11 or newer")
  end
  if vim.fn.executable(program) == 0 then
    vim.health.error(
      "there is no program " .. program,
      { "pip install 'edgedec-runtime[lsp]'", 'or name it: setup({ cmd = { "/path/edgedec", "lsp" } })' }
    )
    return
  end
  vim.health.ok(program .. " is " .. vim.fn.exepath(program))
  local path = vim.fn.expand(bundle)
  if bundle == "" and #edgedec.options.cmd < 3 then
    vim.health.error("no bundle is set", 'setup({ bundle = "~/coder.edgedec" })')
  elseif bundle:match("[/\\]") and vim.fn.filereadable(path .. "/manifest.json") == 0 then
    vim.health.error(
      path .. " is no bundle",
      "edgedec export qwen2.5-coder-0.5b-instruct -o " .. path
    )
  else
    vim.health.ok("bundle: " .. (bundle ~= "" and bundle or "as in cmd"))
  end
  local status = edgedec.status()
  if status == "on" or status == "loading" then
    vim.health.ok("the server runs: " .. status)
  else
    vim.health.warn("suggestions: " .. status, { ":Edgedec on", ":LspLog shows the server's remarks" })
  end
end

return M
