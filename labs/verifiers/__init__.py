"""Verifiers, by the names that users choose them with."""
