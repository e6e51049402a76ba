"""Checkpoints as they were published: finding, reading and checking them, and their tokenizers."""
