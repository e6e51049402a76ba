"""Programs that a model writes, and their tests."""
