"""What drafters are made of: the contract, trees of drafted tokens, counters."""
