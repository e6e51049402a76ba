--- What the plug-in does by itself, and which server it asks.
local M = {}

M.NAME = "edgedec" -- of the server

--- Has each module do what its `events` say from now on. They are { events, action, pattern }.
---@param group integer of autocommands
function M.follow(group, ...)
  for _, module in ipairs({ ... }) do
    for _, entry in ipairs(module.events) do
      vim.api.nvim_create_autocmd(entry[1], {
        group = group,
        pattern = entry[3],
        callback = function()
          entry[2]() -- what it returns must not end the autocommand
        end,
      })
    end
  end
end

--- Returns the server's client of a buffer; nil if there is none.
---@param buffer integer
function M.client(buffer)
  return vim.lsp.get_clients({ name = M.NAME, bufnr = buffer })[1]
end

return M
