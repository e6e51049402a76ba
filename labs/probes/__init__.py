"""Probes: logistic regressions on hidden states that say whether a token is right."""
