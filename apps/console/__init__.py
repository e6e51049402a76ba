"""The terminal: standard streams, colours, progress, signals."""
