"""From a logits row to a token: penalties, truncation, noise, grammars."""
