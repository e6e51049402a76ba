--- Text at the cursor that is seen and is no part of the buffer until it is accepted.
local events = require("edgedec.events")

local M = {}

local METHOD = "textDocument/inlineCompletion"
local INVOKED, AUTOMATIC = 1, 2

local namespace = vim.api.nvim_create_namespace("edgedec")
local shown -- { buffer, row, column, texts, index, has_others }
local asked -- { client, id }: a request that is not answered yet

--- Called with whether an answer, which is still of use, has something on offer.
M.on_answer = function() end

vim.api.nvim_set_hl(0, "EdgedecSuggestion", { link = "Comment", default = true })

--- Asks and shows wherever somebody types.
local function typed()
  M.keep_typed()
  M.ask(AUTOMATIC)
end

--- The model is loaded: what was typed before is asked for now.
local function loaded()
  if vim.fn.mode():sub(1, 1) == "i" then
    M.ask(AUTOMATIC)
  end
end

--- Returns what is on offer; nil if there is nothing.
function M.text()
  return shown and shown.texts[shown.index]
end

--- Takes all that is on offer. Returns it; nil if there was nothing.
function M.accept()
  return M.take(M.text())
end

--- Takes the next word of it. Returns it; nil if there was nothing.
function M.accept_word()
  local text = M.text()
  if text == nil then
    return nil
  end
  local word = vim.fn.matchstr(text, [[^\_s*\%(\k\+\|\%(\k\@!\S\)\+\)]])
  return M.take(word ~= "" and word or text)
end

--- Takes the suggestion away until the next key. Returns whether there was one.
function M.dismiss()
  local was_shown = shown ~= nil
  M.hide()
  if asked then
    asked.client:cancel_request(asked.id)
    asked = nil
  end
  return was_shown
end

--- Shows the alternative that is `step` further on. Returns whether there is a suggestion.
---@param step integer
function M.turn(step)
  if shown == nil then
    return false
  end
  if shown.has_others then
    M.show_index(shown.index + step)
  else
    M.ask(INVOKED, step)
  end
  return true
end

--- Asks the server what it offers at the cursor.
---@param kind integer INVOKED brings alternatives as well
---@param step integer? how far to turn then
function M.ask(kind, step)
  local buffer = vim.api.nvim_get_current_buf()
  local client = events.client(buffer)
  if client == nil or vim.fn.pumvisible() == 1 or not vim.bo[buffer].modifiable then
    return
  end
  local window = vim.api.nvim_get_current_win()
  local parameters = vim.lsp.util.make_position_params(window, client.offset_encoding)
  parameters.context = { triggerKind = kind }
  local place = M.place()
  if asked then
    asked.client:cancel_request(asked.id)
    asked = nil
  end
  local is_sent, id = client:request(METHOD, parameters, function(err, result)
    if asked and asked.place == place then
      asked = nil
    end
    if err == nil and result and M.is_at(place) then
      local items = result.items or result
      M.show(place, items, kind == INVOKED)
      M.on_answer(#items > 0)
      if shown and step then
        M.show_index(shown.index + step)
      end
    end
  end, buffer)
  asked = is_sent and { client = client, id = id, place = place } or nil
end

--- Returns where the cursor is, and in which state of the text.
function M.place()
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  local buffer = vim.api.nvim_get_current_buf()
  return {
    buffer = buffer,
    row = row - 1,
    column = column,
    tick = vim.api.nvim_buf_get_changedtick(buffer),
  }
end

--- Says whether somebody still writes at a place.
function M.is_at(place)
  return vim.fn.mode():sub(1, 1) == "i" and vim.deep_equal(place, M.place())
end

--- Shows what a server answered.
function M.show(place, items, has_others)
  M.hide()
  local texts = {}
  for _, item in ipairs(items) do
    local text = item.insertText
    texts[#texts + 1] = type(text) == "table" and text.value or text
  end
  if #texts > 0 then
    shown = vim.tbl_extend("error", place, { texts = texts, index = 1, has_others = has_others })
    M.paint()
  end
end

--- Shows another of the texts; the first comes after the last.
function M.show_index(index)
  shown.index = (index - 1) % #shown.texts + 1
  M.paint()
end

--- Paints the suggestion.
function M.paint()
  vim.api.nvim_buf_clear_namespace(shown.buffer, namespace, 0, -1)
  local lines = {}
  local column = vim.fn.virtcol({ shown.row + 1, shown.column + 1 }, true)[1] - 1
  for _, line in ipairs(vim.split(M.text(), "\n")) do
    lines[#lines + 1] = { { M.without_tabs(line, column, shown.buffer), "EdgedecSuggestion" } }
    column = 0
  end
  if #shown.texts > 1 or shown.has_others then
    local is_only = #shown.texts == 1
    local count = is_only and " (the only one)" or (" (%d of %d)"):format(shown.index, #shown.texts)
    table.insert(lines[#lines], { count, "EdgedecSuggestion" })
  end
  vim.api.nvim_buf_set_extmark(shown.buffer, namespace, shown.row, shown.column, {
    virt_text = lines[1],
    virt_text_pos = "inline",
    virt_lines = { unpack(lines, 2) },
    hl_mode = "combine",
  })
end

--- Returns a line with spaces instead of tabs, as wide as the buffer shows them.
---@param line string
---@param column integer of the screen at which it begins
---@param buffer integer
function M.without_tabs(line, column, buffer)
  local width = vim.bo[buffer].tabstop
  local parts = {}
  for part, tab in line:gmatch("([^\t]*)(\t?)") do
    column = column + vim.fn.strdisplaywidth(part)
    local n = tab == "" and 0 or width - column % width
    parts[#parts + 1] = part .. (" "):rep(n)
    column = column + n
  end
  return table.concat(parts)
end

--- Keeps the rest of a suggestion whose beginning was typed; hides any other.
function M.keep_typed()
  if shown == nil then
    return
  end
  local now, text = M.place(), M.text()
  local is_same_line = now.buffer == shown.buffer and now.row == shown.row
  if not is_same_line or now.column < shown.column then
    M.hide()
    return
  end
  local line = vim.api.nvim_buf_get_lines(now.buffer, now.row, now.row + 1, true)[1]
  local typed = line:sub(shown.column + 1, now.column)
  local is_moved = now.column > shown.column and now.tick == shown.tick
  if is_moved or not vim.startswith(text, typed) or #typed == #text then
    M.hide()
  elseif typed ~= "" then
    M.show(now, { { insertText = text:sub(#typed + 1) } }, false)
  elseif now.tick ~= shown.tick then
    M.hide() -- something else was changed
  end
end

--- Writes text at the cursor, as a step of undo of its own. It is pasted, for `.` repeats that.
---@param text string?
function M.take(text)
  if text == nil or not vim.bo.modifiable then
    return nil
  end
  local rest = M.text():sub(#text + 1)
  M.write(text)
  if rest == "" then
    M.hide()
  else
    M.show(M.place(), { { insertText = rest } }, false)
  end
  return text
end

--- Writes text at the cursor.
---@param text string
function M.write(text)
  M.hide()
  vim.bo.undolevels = vim.bo.undolevels
  vim.api.nvim_paste(text, false, -1)
end

--- Takes away what is painted.
function M.hide()
  if shown and vim.api.nvim_buf_is_valid(shown.buffer) then
    vim.api.nvim_buf_clear_namespace(shown.buffer, namespace, 0, -1)
  end
  shown = nil
end

M.events = {
  { { "InsertEnter", "CursorMovedI", "TextChangedI" }, typed },
  { "LspProgress", loaded, "end" },
  { { "InsertLeave", "BufLeave", "TextChangedP" }, M.dismiss },
}

return M
