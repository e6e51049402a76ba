"""Other ways for a prompt to get into a KV cache."""
