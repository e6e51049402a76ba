--- Suggestions at the cursor, and the next edit, from `edgedec lsp`, a language server on this machine.
local edits = require("edgedec.edits")
local events = require("edgedec.events")
local ghost = require("edgedec.ghost")
local keys = require("edgedec.keys")
local macros = require("edgedec.macros")

local M = {}

--- What `setup` may change.
M.options = {
  cmd = { "edgedec", "lsp" },
  bundle = "", -- a path, or the name of an exported model
  settings = {}, -- others of the server, such as threads = 2
  exclude = { "help", "gitcommit" }, -- file types without suggestions
  keys = {
    accept = "<Tab>",
    accept_word = "<C-Right>",
    dismiss = "<C-]>",
    next = "<M-]>",
    previous = "<M-[>",
    next_edit = "]e", -- in normal mode
    dismiss_edit = "<Esc>", -- in normal mode
  },
}

local is_on = false
local client_id -- of the server that was started last

--- Starts suggestions in the files that are open and in those that will be.
---@param options table? in place of `M.options`, by name
function M.setup(options)
  M.options = vim.tbl_deep_extend("force", M.options, options or {})
  keys.map("i", M.options.keys, {
    accept = function()
      return M.accept() or edits.jump_or_take()
    end,
    accept_word = M.accept_word,
    dismiss = M.dismiss,
    next = function()
      return ghost.turn(1)
    end,
    previous = function()
      return ghost.turn(-1)
    end,
  })
  keys.map("n", M.options.keys, {
    accept = edits.jump_or_take,
    next_edit = edits.next,
    dismiss_edit = edits.dismiss,
  })
  M.enable(true)
end

--- Turns suggestions on or off. Off computes nothing; the model stays in memory.
---@param on boolean
function M.enable(on)
  is_on = on
  local group = vim.api.nvim_create_augroup("edgedec", { clear = true })
  if not on then
    M.dismiss()
    return
  end
  vim.api.nvim_create_autocmd({ "FileType", "BufEnter" }, {
    group = group,
    callback = function(event)
      M.attach(event.buf)
    end,
  })
  events.follow(group, ghost, edits, macros)
  for _, buffer in ipairs(vim.api.nvim_list_bufs()) do
    if vim.api.nvim_buf_is_loaded(buffer) then
      M.attach(buffer)
    end
  end
end

--- Has the server know a buffer; starts the server if it does not run.
---@param buffer integer
function M.attach(buffer)
  local kind = vim.bo[buffer]
  if kind.buftype ~= "" or vim.tbl_contains(M.options.exclude, kind.filetype) then
    return
  end
  local settings = vim.tbl_extend("force", M.options.settings, { bundle = M.options.bundle })
  local capabilities = vim.lsp.protocol.make_client_capabilities()
  capabilities.textDocument.inlineCompletion = { dynamicRegistration = false }
  client_id = vim.lsp.start({
    name = events.NAME,
    cmd = M.options.cmd,
    root_dir = vim.fs.root(buffer, ".git") or vim.fn.getcwd(),
    settings = { edgedec = settings },
    capabilities = capabilities,
  }, {
    bufnr = buffer,
    reuse_client = function(client)
      return client.id == client_id and not client:is_stopped()
    end,
  })
end

--- Returns the server's client; nil if no server runs.
function M.client()
  local client = client_id and vim.lsp.get_client_by_id(client_id)
  return client and not client:is_stopped() and client or nil
end

--- Returns "off", "no server", "loading" or "on", for a status line.
function M.status()
  if not is_on then
    return "off"
  end
  local client = M.client()
  if client == nil then
    return "no server"
  end
  local is_loading = not client.initialized or next(client.progress.pending) ~= nil
  return is_loading and "loading" or "on"
end

--- Does what `:Edgedec` is asked for.
---@param what string
function M.command(what)
  if what == "on" or what == "off" then
    M.enable(what == "on")
  elseif what == "toggle" then
    M.enable(not is_on)
  elseif what ~= "status" and what ~= "" then
    vim.notify("edgedec: got " .. what .. ", expected on, off, toggle or status", vim.log.levels.ERROR)
    return
  end
  vim.notify("edgedec: " .. M.status())
end

M.accept = macros.replaying(ghost.accept, ghost.write)
M.accept_word = macros.replaying(ghost.accept_word, ghost.write)
M.turn, M.jump_or_take, M.next_edit = ghost.turn, edits.jump_or_take, edits.next

--- Takes the suggestion and the edit away. Returns whether there was one.
function M.dismiss()
  return ghost.dismiss() or edits.dismiss()
end

return M
