"""Bundle to tokens: load a bundle, generate text."""
