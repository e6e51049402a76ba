"""Threads: on which processors computing stays."""
