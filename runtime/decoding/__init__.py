"""How the next tokens are found: plain, speculative, and with two models that take turns."""
