"""What `edgedec lsp`, `desktop` and `type` share: settings, memory, and the model's process."""
