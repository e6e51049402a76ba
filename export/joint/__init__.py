"""Training of KV maps, and of the smaller model that reads for them, by gradients; needs torch."""
