"""What `edgedec lsp` is made of: the Language Server Protocol in front of an autocompleter."""
