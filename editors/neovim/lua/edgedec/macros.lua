--- Macros write the suggestions that were accepted while they were recorded.
---
--- A register holds keys, and what a key accepts depends on the model. So each key's text is kept
--- beside the register, in order, as long as Neovim runs.
local M = {}

local taken = {} -- by register: of each press, the text; false: there was no suggestion
local position = 0 -- in the macro that runs

--- Forgets what a register had when it is recorded anew.
local function forget()
  local register = vim.fn.reg_recording()
  if register == register:lower() then -- a capital letter appends
    taken[register] = {}
  end
end

local function rewind()
  position = 0
end

M.events = { { "RecordingEnter", forget }, { "SafeState", rewind } }

--- Returns what a key does: what it did at recording in a macro, else `take`.
---@param take fun(): string? writes a suggestion and returns it
---@param write fun(text: string) at the cursor
---@return fun(): boolean
function M.replaying(take, write)
  return function()
    local texts = taken[vim.fn.reg_executing():lower()]
    if texts and #texts > 0 then
      position = position % #texts + 1
      local text = texts[position]
      if text then
        write(text)
      end
      return text ~= false
    end
    local text = take()
    local recorded = taken[vim.fn.reg_recording():lower()]
    if recorded then
      recorded[#recorded + 1] = text or false
    end
    return text ~= nil
  end
end

return M
