"""Decoding methods by name, and what they are made of."""
