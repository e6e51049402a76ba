"""Drafters and what they share: their contract, draft trees, n-gram indexes, counters."""
