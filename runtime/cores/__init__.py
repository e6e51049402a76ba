"""Processors and threads: what the machine has, and where computing stays."""
