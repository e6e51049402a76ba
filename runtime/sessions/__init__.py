"""Models with a KV cache: passes, what was computed before, and its files."""
