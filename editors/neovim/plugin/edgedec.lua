if vim.g.loaded_edgedec then
  return
end
vim.g.loaded_edgedec = true

vim.api.nvim_create_user_command("Edgedec", function(given)
  require("edgedec").command(given.args)
end, {
  nargs = "?",
  complete = function()
    return { "on", "off", "toggle", "status" }
  end,
  desc = "Suggestions while typing: on, off, toggle, status",
})
