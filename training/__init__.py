"""Training beside a bundle's models: draft heads, draft models, maps of keys and values."""
