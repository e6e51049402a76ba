"""Drafting methods, one per file, and their contract."""
