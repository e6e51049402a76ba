"""What `edgedec lsp` and `edgedec desktop` share: settings and memory of suggestions."""
