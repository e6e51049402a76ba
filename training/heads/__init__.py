"""Draft heads, trained on hidden states of a bundle's own model."""
