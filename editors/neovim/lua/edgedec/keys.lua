--- Keys that act on a suggestion, and do what they did before where there is none.
local M = {}

--- Maps keys.
---@param mode string as of `vim.keymap.set`
---@param keys table<string, string|false> by action; false maps none
---@param actions table<string, fun(): boolean> each says whether there was a suggestion
function M.map(mode, keys, actions)
  for name, key in pairs(keys) do
    if key and actions[name] then
      M.put(mode, key, actions[name], "edgedec: " .. name:gsub("_", " "))
    end
  end
end

--- Maps one key.
---@param mode string
---@param key string
---@param action fun(): boolean
---@param title string
function M.put(mode, key, action, title)
  local before = vim.fn.maparg(key, mode, false, true)
  if (before.desc or ""):match("^edgedec: ") then
    return
  end
  vim.keymap.set(mode, key, function()
    if not action() then
      M.press(key, before)
    end
  end, { desc = title })
end

--- Presses a key as it was mapped before.
---@param key string
---@param before table as of `maparg`; empty: it was not mapped
function M.press(key, before)
  local keys, is_mapped = before.rhs or key, before.rhs ~= nil and before.noremap == 0
  if before.callback then
    keys = before.callback()
  elseif before.expr == 1 then
    keys = vim.api.nvim_eval(before.rhs)
  end
  if before.callback and before.expr ~= 1 or type(keys) ~= "string" then
    return
  end
  local typed = vim.api.nvim_replace_termcodes(keys, true, true, true)
  vim.api.nvim_feedkeys(typed, is_mapped and "mi" or "ni", false)
end

return M
