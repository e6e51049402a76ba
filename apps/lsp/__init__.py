"""`edgedec lsp`: the Language Server Protocol in front of an autocompleter."""
