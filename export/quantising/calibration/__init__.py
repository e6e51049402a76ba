"""Quantisation that looks at what a model computes on a text."""
