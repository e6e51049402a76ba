"""Training beside a bundle's models: draft heads, draft models, exits, maps of keys and values."""
