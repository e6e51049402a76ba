"""Indexes of token sequences that occurred before, in memory and on disk."""
