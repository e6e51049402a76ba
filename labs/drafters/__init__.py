"""Drafting methods that pay on nothing tried."""
