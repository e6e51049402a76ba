"""Decoding with layers left out, which is approximate."""
