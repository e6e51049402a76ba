--- The next edit, shown in place: what goes is struck, what comes stands beside or below it.
local events = require("edgedec.events")
local ghost = require("edgedec.ghost")

local M = {}

local METHOD = "textDocument/copilotInlineEdit"
local INVOKED, AUTOMATIC = 1, 2

local namespace = vim.api.nvim_create_namespace("edgedec.edits")
local shown -- { client, buffer, tick, edit }
local asked -- { client, id }: a request that is not answered yet

vim.api.nvim_set_hl(0, "EdgedecAdded", { link = "DiffAdd", default = true })
vim.api.nvim_set_hl(0, "EdgedecRemoved", { strikethrough = true, default = true })

--- Asks and shows in insert mode where no text is on offer.
ghost.on_answer = function(is_offer)
  if is_offer then
    M.hide()
  else
    M.ask()
  end
end

--- Returns the edit that is shown, if the buffer is still as it was; nil if there is none.
function M.shown()
  local buffer = vim.api.nvim_get_current_buf()
  local is_now = shown and shown.buffer == buffer and shown.tick == vim.api.nvim_buf_get_changedtick(buffer)
  return is_now and shown.edit or nil
end

--- Asks the server for the next edit.
---@param is_next boolean? another than the one that is shown; it is jumped to
function M.ask(is_next)
  local buffer = vim.api.nvim_get_current_buf()
  local client = events.client(buffer)
  local is_macro = vim.fn.reg_recording() ~= "" or vim.fn.reg_executing() ~= ""
  local is_shown = M.shown() ~= nil and not is_next
  if client == nil or is_macro or is_shown or not vim.bo[buffer].modifiable then
    return
  end
  local tick = vim.api.nvim_buf_get_changedtick(buffer)
  if asked and asked.buffer == buffer and asked.tick == tick and not is_next then
    return
  end
  M.cancel()
  local parameters = M.parameters(client, buffer, is_next and INVOKED or AUTOMATIC)
  local is_sent, id = client:request(METHOD, parameters, function(err, result)
    if asked and asked.parameters == parameters then
      asked = nil
    end
    local is_here = vim.api.nvim_get_current_buf() == buffer
    if err or not result or not is_here or tick ~= vim.api.nvim_buf_get_changedtick(buffer) then
      return
    end
    local edit = result.edits[1]
    if edit and ghost.text() == nil then
      M.hide()
      shown = { client = client, buffer = buffer, tick = tick, edit = edit }
      M.paint()
      if is_next then
        M.jump()
      end
    elseif is_next then
      vim.notify("edgedec: there is no other edit")
    end
  end, buffer)
  local request = { client = client, id = id, buffer = buffer, tick = tick, parameters = parameters }
  asked = is_sent and request or nil
end

--- Returns the parameters of a request.
function M.parameters(client, buffer, kind)
  local parameters = vim.lsp.util.make_position_params(0, client.offset_encoding)
  parameters.textDocument.version = vim.lsp.util.buf_versions[buffer]
  local diagnostics = vim.tbl_map(function(one)
    local start = { line = one.lnum, character = one.col }
    local stop = { line = one.end_lnum or one.lnum, character = one.end_col or one.col }
    return { range = { start = start, ["end"] = stop }, message = one.message }
  end, vim.diagnostic.get(buffer))
  parameters.context = { triggerKind = kind, diagnostics = diagnostics }
  return parameters
end

--- Jumps to the edit; takes it where the cursor is there already. Returns whether there is one.
function M.jump_or_take()
  local edit = M.shown()
  if edit == nil then
    return false
  end
  local row = vim.api.nvim_win_get_cursor(0)[1] - 1
  if row < edit.range.start.line or row > edit.range["end"].line then
    M.jump()
  else
    M.take()
  end
  return true
end

--- Moves the cursor to the first change.
function M.jump()
  local row, column = M.place(shown.edit.changes[1].range.start)
  vim.cmd("normal! m'")
  vim.api.nvim_win_set_cursor(0, { row + 1, column })
  M.paint()
end

--- Makes the edit, as one step of undo.
function M.take()
  local client, buffer, edit = shown.client, shown.buffer, shown.edit
  M.hide()
  vim.bo[buffer].undolevels = vim.bo[buffer].undolevels
  vim.lsp.util.apply_text_edits(edit.changes, buffer, client.offset_encoding)
  vim.bo[buffer].undolevels = vim.bo[buffer].undolevels
  M.tell(client, "edgedec.acceptEdit", edit)
end

--- Takes the edit away; it does not come again. Returns whether there was one.
function M.dismiss()
  local edit = M.shown()
  if edit == nil then
    return false
  end
  M.tell(shown.client, "edgedec.dismissEdit", edit)
  M.hide()
  return true
end

--- Shows another edit and jumps to it.
function M.next()
  local edit = M.shown()
  if edit then
    M.tell(shown.client, "edgedec.skipEdit", edit)
  end
  M.ask(true)
  return true
end

--- Tells the server what became of an edit.
function M.tell(client, command, edit)
  local parameters = { command = command, arguments = edit.command.arguments }
  client:request("workspace/executeCommand", parameters, function() end)
end

--- Takes away what is painted, and forgets what was asked.
function M.hide()
  if shown and vim.api.nvim_buf_is_valid(shown.buffer) then
    vim.api.nvim_buf_clear_namespace(shown.buffer, namespace, 0, -1)
  end
  shown = nil
  M.cancel()
end

--- Has an unanswered request ended.
function M.cancel()
  if asked then
    asked.client:cancel_request(asked.id)
    asked = nil
  end
end

--- Paints all changes, and where they are if that cannot be seen.
function M.paint()
  vim.api.nvim_buf_clear_namespace(shown.buffer, namespace, 0, -1)
  for _, change in ipairs(shown.edit.changes) do
    M.paint_change(change)
  end
  local line, row = shown.edit.changes[1].range.start.line + 1, vim.api.nvim_win_get_cursor(0)[1]
  if line < vim.fn.line("w0") or line > vim.fn.line("w$") then
    local text = { { (" next edit: line %d"):format(line), "EdgedecSuggestion" } }
    vim.api.nvim_buf_set_extmark(shown.buffer, namespace, row - 1, 0, { virt_text = text })
  end
end

--- Paints one change.
function M.paint_change(change)
  local row, column = M.place(change.range.start)
  local last, stop = M.place(change.range["end"])
  local is_new = row == last and column == stop -- nothing goes
  if not is_new then
    M.mark(row, column, { end_row = last, end_col = stop, hl_group = "EdgedecRemoved" })
  end
  local text = change.newText:gsub("\r\n?", "\n")
  local lines = vim.split(text, "\n")
  local is_lines = change.range.start.character == 0 and text:sub(-1) == "\n"
  if is_lines then
    table.remove(lines)
    local is_behind = change.range.start.line >= vim.api.nvim_buf_line_count(shown.buffer)
    local at = is_new and row or math.max(row, last - 1)
    M.mark(at, 0, { virt_lines = M.virtual(lines), virt_lines_above = is_new and not is_behind })
  elseif #lines > 1 and not is_new then
    M.mark(last, 0, { virt_lines = M.virtual(lines) })
  elseif text ~= "" then
    local first = { { ghost.without_tabs(lines[1], 0, shown.buffer), "EdgedecAdded" } }
    local below = M.virtual({ unpack(lines, 2) })
    M.mark(last, stop, { virt_text = first, virt_text_pos = "inline", virt_lines = below })
  end
end

function M.mark(row, column, options)
  vim.api.nvim_buf_set_extmark(shown.buffer, namespace, row, column, options)
end

--- Returns lines as an extmark wants them.
function M.virtual(lines)
  return vim.tbl_map(function(line)
    return { { ghost.without_tabs(line, 0, shown.buffer), "EdgedecAdded" } }
  end, lines)
end

--- Returns the row and the byte of a position; behind the last line: the end of it.
function M.place(position)
  local n = vim.api.nvim_buf_line_count(shown.buffer)
  local row = math.min(position.line, n - 1)
  local line = vim.api.nvim_buf_get_lines(shown.buffer, row, row + 1, true)[1]
  if row < position.line then
    return row, #line
  end
  return row, vim.str_byteindex(line, shown.client.offset_encoding, position.character, false)
end

M.events = {
  { { "TextChanged", "InsertLeave" }, M.ask },
  { { "TextChangedI", "TextChangedP", "BufLeave" }, M.hide },
}

return M
