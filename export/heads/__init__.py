"""Draft heads: trained on features of a bundle's own model, and put beside it."""
